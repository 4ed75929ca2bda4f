"""One run of a cell with Flower; its results are stored completely or not at all."""

from __future__ import annotations

import errno
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from flfa_app.errors import truncate
from flfa_app.experiments.store import Cell, GridResults
from flfa_app.files import write_json
from flfa_app.launch.app_files import find_results
from flfa_app.launch.run_log import strip_colours
from flfa_app.launch.superlink import SuperLink
from flfa_app.results.records import RoundRecord

RUNNING = "running"
# Room that a run needs at least for its model, pictures and logs.
MIN_FREE_BYTES = 100_000_000


class DiskFullError(RuntimeError):
    """The disk has no room for results; every other cell would fail as well."""


class SuperLinkDiedError(Exception):
    """The SuperLink ended during a cell; the cell is not the cause."""


class CellOutcome(NamedTuple):
    """The end of a run: a complete run directory, or the reason of its failure."""

    directory: Path | None
    reason: str
    log: list[str]


# Takes the record of each round as soon as the run has written it.
RoundListener = Callable[[RoundRecord], None]
# Runs a cell, given a folder for its results and a listener.
CellRunner = Callable[[Cell, Path, RoundListener], CellOutcome]


def run_cell(
    results: GridResults, cell: Cell, runner: CellRunner, listener: RoundListener
) -> str:
    """Run a cell and store its results; return why it failed, or "".

    The cell runs in ``<out>/running/<id>``. Its complete run directory is moved to
    ``<out>/cells/<id>`` in one step, so that a crash at any moment leaves no partial
    cell. An older run of the cell is kept under another name.
    """
    folder = results.folder / RUNNING / cell.id
    try:
        # A run that was interrupted may have left files.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        outcome = runner(cell, folder, listener)
        if outcome.directory is not None:
            _keep_aside(results.run_directory(cell))
            outcome.directory.replace(results.run_directory(cell))
            results.failure_file(cell).unlink(missing_ok=True)
        else:
            _write_failure(results, cell, outcome)
        shutil.rmtree(folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(f"no space left for {results.folder}") from error
        raise
    return outcome.reason


def _write_failure(results: GridResults, cell: Cell, outcome: CellOutcome) -> None:
    free = shutil.disk_usage(results.folder).free
    if free < MIN_FREE_BYTES or any("Errno 28" in line for line in outcome.log):
        raise DiskFullError(
            f"no space left: {free / 1e6:.0f} MB free for {results.folder}; the last "
            f"run ended with: {outcome.reason}"
        )
    log = results.log_file(cell)
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(outcome.log) + "\n", encoding="utf-8")
    failure = {"reason": outcome.reason, "log": str(log)}
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    write_json(results.failure_file(cell), {**failure, "when": when})


def _keep_aside(directory: Path) -> None:
    if not directory.exists():
        return
    number = 1
    while (aside := directory.with_name(f"{directory.name}.other-{number}")).exists():
        number += 1
    directory.rename(aside)


def flower_cell_runner(superlinks: Iterable[SuperLink], gpus: float) -> CellRunner:
    """Return a runner that starts each cell on a SuperLink that is free.

    Each SuperLink keeps Ray running and runs one cell at a time. ``gpus`` is the share
    of a GPU for each simulated node.
    """
    free: SimpleQueue[SuperLink] = SimpleQueue()
    for superlink in superlinks:
        free.put(superlink)

    def run(cell: Cell, folder: Path, listener: RoundListener) -> CellOutcome:
        superlink = free.get()
        try:
            return _run_on(superlink, gpus, cell, folder, listener)
        finally:
            free.put(superlink)

    return run


def _run_on(
    superlink: SuperLink, gpus: float, cell: Cell, folder: Path, listener: RoundListener
) -> CellOutcome:
    log: list[str] = []
    position = 0  # in metrics.jsonl, after the records that the listener has

    def take_line(line: str) -> None:
        nonlocal position
        log.append(strip_colours(line))
        # A run logs a line after it has written a record.
        for file in folder.glob("*/metrics.jsonl"):
            with file.open("rb") as opened:
                opened.seek(position)
                content = opened.read()
            complete = content[: content.rfind(b"\n") + 1]
            position += len(complete)
            for written in complete.splitlines():
                listener(RoundRecord.from_json(json.loads(written)))

    try:
        run_id = superlink.stream_run(
            run_config=cell.run_config,
            nodes=cell.nodes,
            workers=superlink.ray_workers,
            gpus=gpus,
            output_dir=folder,
            on_log_line=take_line,
        )
        directory = find_results(run_id, folder)
        # A run writes its summary last. Asking the SuperLink would take seconds more.
        if directory is not None and (directory / "summary.json").is_file():
            return CellOutcome(directory, "", log)
        _raise_if_dead(superlink)
        details = superlink.outcome(run_id, folder).details
    except RuntimeError as error:
        _raise_if_dead(superlink)
        details = str(error)
    return CellOutcome(None, _failure_reason(log, details), log)


def _raise_if_dead(superlink: SuperLink) -> None:
    if superlink.stopping or not superlink.is_alive:
        log = superlink.log.read_text(errors="replace").splitlines()
        last = "\n".join(strip_colours(line) for line in log[-10:])
        raise SuperLinkDiedError(f"the SuperLink has ended; its last lines:\n{last}")


def _failure_reason(log: list[str], details: str) -> str:
    """Return the last log line that names an exception, or else Flower's details.

    Flower's details only say that the run has failed.
    """
    errors = [x for x in log if re.match(r"(\(.*?\) )?[\w.]*(Error|Exception): \S", x)]
    return truncate(errors[-1] if errors else details)
