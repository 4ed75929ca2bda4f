"""The progress of a grid, shown while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flfa_app.experiments.store import Cell
from flfa_app.results.records import RoundRecord


class GridProgress:
    """A bar for the whole grid with the remaining time and the latest round.

    ``bar`` is a context manager that shows it. If the output is no terminal, only a
    line for each cell that has ended is printed.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self.console = console
        self._num_rounds = {
            cell.id: int(cell.run_config["num-server-rounds"]) for cell in cells
        }
        self._finished_share: dict[str, float] = {}
        self._ended_cells = 0
        self._start = time.monotonic()
        self.bar = Progress(
            MofNCompleteColumn(),
            TextColumn("cells"),
            BarColumn(bar_width=24),
            TextColumn("left {task.fields[left]}  {task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=len(cells), left="?")

    def show_start(self, cell: Cell) -> None:
        """Show that a cell starts."""
        self._update(f"{cell.id}: starting")

    def show_round(self, cell: Cell, record: RoundRecord) -> None:
        """Show a round of a cell."""
        num_rounds = self._num_rounds[cell.id]
        self._finished_share[cell.id] = record.server_round / num_rounds
        self._update(f"{cell.id}: {record.describe(num_rounds)}")

    def show_end(self, cell: Cell, reason: str) -> None:
        """Show that a cell is finished, or why it failed."""
        self._finished_share[cell.id] = 1.0
        self._ended_cells += 1
        text = f"{self._ended_cells}/{len(self._num_rounds)} {cell.id}"
        if reason:
            text += f" has failed: {reason}"
        self.print(f"{text}  (left {self._time_left()})", "red" if reason else "")
        self.bar.update(self._task, completed=self._ended_cells)

    def print(self, text: str, style: str = "") -> None:
        """Print a line above the bar."""
        self.console.print(text, style=style, markup=False, highlight=False)

    def _update(self, text: str) -> None:
        self.bar.update(self._task, description=text, left=self._time_left())

    def _time_left(self) -> str:
        """Return the remaining time if the other cells are as fast as those so far."""
        finished = sum(self._finished_share.values())
        if not finished:
            return "?"
        elapsed = time.monotonic() - self._start
        return format_duration(elapsed / finished * (len(self._num_rounds) - finished))


def format_duration(seconds: float) -> str:
    """Return a duration in minutes, hours or days."""
    if seconds < 5400:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02d} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
