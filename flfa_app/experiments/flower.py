"""One cell on Flower: a ``flwr run`` on the SuperLink of the grid."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from flfa_app.experiments.attempt import Attempt, Ended
from flfa_app.experiments.store import Cell
from flfa_app.launch import PROJECT
from flfa_app.superlink import SuperLink

__all__ = ["SuperLinkDiedError", "flower_attempt", "plain"]


class SuperLinkDiedError(RuntimeError):
    """The SuperLink has ended while a cell was running; the cell is not to blame."""


def flower_attempt(superlink: SuperLink, *, workers: int, gpus: float) -> Attempt:
    """Return what runs a cell on a SuperLink.

    Parameters
    ----------
    superlink : SuperLink
        May run several cells at the same time.
    workers : int
        Simulated nodes of one cell that compute at the same time.
    gpus : float
        Share of a GPU for each of them.
    """

    def attempt(cell: Cell, folder: Path, show: Callable[[str], None]) -> Ended:
        lines: list[str] = []

        def take(line: str) -> None:
            lines.append(plain(line))
            show(lines[-1])

        try:
            run_id = superlink.follow(
                PROJECT,
                run_config=cell.run_config,
                nodes=cell.nodes,
                workers=workers,
                gpus=gpus,
                output_dir=folder,
                show=take,
            )
            results = next(folder.glob(f"*-{run_id}"), None)
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

    return attempt


def _stop_if_dead(superlink: SuperLink) -> None:
    if superlink.stopping or superlink.process.poll() is not None:
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
    return named[-1] if named else details
