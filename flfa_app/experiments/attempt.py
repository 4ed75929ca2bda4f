"""One attempt at a cell: it is in the results as a whole or not at all."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flfa_app.experiments.files import write_json
from flfa_app.experiments.store import Cell, Results

__all__ = ["RUNNING", "Attempt", "DiskFullError", "Ended", "try_cell"]

RUNNING = "running"
# What a run needs at least for its model, pictures and logs.
LEAST_FREE_BYTES = 100_000_000


class DiskFullError(RuntimeError):
    """There is no room for results; no other cell would do better."""


class Ended(NamedTuple):
    """How a run has ended: with a complete run directory, or for which reason."""

    results: Path | None
    reason: str
    log: list[str]


Attempt = Callable[[Cell, Path, Callable[[str], None]], Ended]
"""Runs a cell with a folder for its results; hands on the lines of its log."""


def try_cell(
    results: Results, cell: Cell, attempt: Attempt, show: Callable[[str], None]
) -> str:
    """Run a cell; return why it has failed, or "".

    It runs in ``<out>/running/<id>`` and is moved to ``<out>/cells/<id>`` when it is
    complete, in one step, so that a crash at any moment leaves no half of a cell. What
    is there already has other settings; it is kept beside, under another name.
    """
    folder = results.folder / RUNNING / cell.id
    try:
        folder.mkdir(parents=True)
        ended = attempt(cell, folder, show)
        if ended.results is not None:
            _keep_aside(results.directory(cell))
            ended.results.replace(results.directory(cell))
            results.failure_file(cell).unlink(missing_ok=True)
        else:
            _mark(results, cell, ended)
        shutil.rmtree(folder)
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise DiskFullError(f"no space left for {results.folder}") from problem
        raise
    return ended.reason


def _mark(results: Results, cell: Cell, ended: Ended) -> None:
    free = shutil.disk_usage(results.folder).free
    if free < LEAST_FREE_BYTES or any("Errno 28" in line for line in ended.log):
        raise DiskFullError(
            f"no space left: {free / 1e6:.0f} MB free for {results.folder}; the last "
            f"run ended with: {ended.reason}"
        )
    log = results.log_file(cell)
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(ended.log) + "\n", encoding="utf-8")
    about = {
        "reason": ended.reason,
        "log": str(log),
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    write_json(results.failure_file(cell), about)


def _keep_aside(directory: Path) -> None:
    if not directory.exists():
        return
    number = 1
    while (aside := directory.with_name(f"{directory.name}.other-{number}")).exists():
        number += 1
    directory.rename(aside)
