"""The progress of a grid, shown while it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flfa_app.experiments.store import Cell

__all__ = ["GridProgress", "format_duration"]

ROUND = re.compile(r"round\s+(\d+)/(\d+)\s.*")


class GridProgress:
    """One bar for the whole grid, with the time left and the last round of a cell.

    Where the output is not a terminal there is a line for each finished cell.

    Parameters
    ----------
    cells : Sequence[Cell]
        What is to be done.
    console : Console
        Where to show it.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self.console = console
        self._rounds = {c.id: int(c.run_config["num-server-rounds"]) for c in cells}
        self._done: dict[str, float] = {}
        self._ended = 0
        self._began = time.monotonic()
        self._bar = Progress(
            MofNCompleteColumn(),
            TextColumn("cells"),
            BarColumn(bar_width=24),
            TextColumn("left {task.fields[left]}  {task.description}"),
            console=console,
        )
        self._task = self._bar.add_task("", total=len(cells), left="?")

    def __enter__(self) -> GridProgress:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def cell_started(self, cell: Cell) -> None:
        """Show that a cell has been started."""
        self._update(f"{cell.id}: starting")

    def line(self, cell: Cell, line: str) -> None:
        """Take a line of a cell's log; the lines of rounds are shown."""
        if found := ROUND.search(line):
            self._done[cell.id] = int(found[1]) / self._rounds[cell.id]
            # The time left of one cell would be taken for that of the grid.
            self._update(f"{cell.id}: {found[0].partition('  left')[0]}")

    def cell_ended(self, cell: Cell, reason: str) -> None:
        """Show that a cell is finished, or why it has failed."""
        self._done[cell.id] = 1.0
        self._ended += 1
        number = f"{self._ended}/{len(self._rounds)}"
        if reason:
            text, style = f"{number} {cell.id} has failed: {reason}", "red"
        else:
            text, style = f"{number} {cell.id}", ""
        self.print(f"{text}  (left {self._left()})", style)
        self._bar.update(self._task, completed=self._ended)

    def print(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(text, style=style, markup=False, highlight=False)

    def _update(self, text: str) -> None:
        self._bar.update(self._task, description=text, left=self._left())

    def _left(self) -> str:
        """Return the time left if the cells to come are as fast as those before."""
        done = sum(self._done.values())
        if not done:
            return "?"
        seconds = (time.monotonic() - self._began) / done * (len(self._rounds) - done)
        return format_duration(seconds)


def format_duration(seconds: float) -> str:
    """Return a duration in words that fit its size."""
    if seconds < 5400:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02d} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
