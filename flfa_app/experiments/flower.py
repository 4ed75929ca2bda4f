"""One cell on Flower: a ``flwr run`` on a SuperLink of the grid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue

from flfa_app.errors import truncate
from flfa_app.experiments.attempt import Attempt, Ended
from flfa_app.experiments.store import Cell
from flfa_app.launch.superlink import SuperLink, results_of

__all__ = ["SuperLinkDiedError", "flower_attempt", "plain"]


class SuperLinkDiedError(RuntimeError):
    """The SuperLink has ended while a cell was running; the cell is not to blame."""


def flower_attempt(superlinks: Iterable[SuperLink], gpus: float) -> Attempt:
    """Return what runs a cell on one of some SuperLinks, when it is free.

    Parameters
    ----------
    superlinks : Iterable[SuperLink]
        With Ray kept; as many cells can run at the same time.
    gpus : float
        Share of a GPU for each simulated node.
    """
    free: SimpleQueue[SuperLink] = SimpleQueue()
    for superlink in superlinks:
        free.put(superlink)

    def attempt(cell: Cell, folder: Path, show: Callable[[str], None]) -> Ended:
        superlink = free.get()
        try:
            return _attempt(superlink, gpus, cell, folder, show)
        finally:
            free.put(superlink)

    return attempt


def _attempt(
    superlink: SuperLink,
    gpus: float,
    cell: Cell,
    folder: Path,
    show: Callable[[str], None],
) -> Ended:
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(plain(line))
        show(lines[-1])

    try:
        run_id = superlink.follow(
            run_config=cell.run_config,
            nodes=cell.nodes,
            workers=superlink.kept_workers,
            gpus=gpus,
            output_dir=folder,
            show=take,
        )
        results = results_of(run_id, folder)
        # Written last of all: asking the SuperLink as well takes seconds.
        if results is not None and (results / "summary.json").is_file():
            return Ended(results, "", lines)
        _stop_if_dead(superlink)
        details = superlink.outcome(run_id, folder).details
    except SuperLinkDiedError:
        raise
    except RuntimeError as problem:
        _stop_if_dead(superlink)
        details = str(problem)
    return Ended(None, _reason(lines, details), lines)


def _stop_if_dead(superlink: SuperLink) -> None:
    if superlink.stopping or not superlink.alive:
        log = superlink.log.read_text(errors="replace").splitlines()
        last = "\n".join(plain(line) for line in log[-10:])
        raise SuperLinkDiedError(f"the SuperLink has ended; its last lines:\n{last}")


def plain(line: str) -> str:
    """Return a line without the codes for colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _reason(lines: list[str], details: str) -> str:
    """Return the error that ended a run: the last line that names one, or else Flower.

    Flower's own words are only that the run has failed.
    """
    named = [x for x in lines if re.match(r"(\(.*?\) )?[\w.]*(Error|Exception): \S", x)]
    return truncate(named[-1] if named else details)
