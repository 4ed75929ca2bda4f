"""What a call is going to do, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flfa_app.experiments.plan import Plan
from flfa_app.experiments.progress import duration
from flfa_app.experiments.store import Cell

__all__ = ["describe", "listing"]

# As many cells have a line each; of more, the seeds of a combination share one.
MOST_LINES = 30


def describe(plan: Plan) -> str:
    """Return what a call will do, in a few lines."""
    results = plan.results
    lines = [
        results.grid.title,
        f"Results: {results.folder}",
        f"{len(plan.chosen)} cells: {len(plan.finished)} finished, "
        f"{len(plan.to_do)} to do",
    ]
    there = [cell for cell in plan.to_do if results.has_ended(cell)]
    damaged = [problem for cell in there if (problem := results.damage(cell))]
    if other := len(there) - len(damaged):
        lines.append(f"{other} of them are there with other settings: kept aside")
    if damaged:
        lines.append(f"{len(damaged)} of them are damaged: kept aside, run again")
        lines += [f"  - {problem.partition(';')[0]}" for problem in damaged]
    if plan.to_do:
        lines.append(
            f"{plan.cells_at_a_time} at a time, workers for each: {plan.workers}; "
            f"time needed: {_needed(plan)}"
        )
    return "\n".join(lines)


def _needed(plan: Plan) -> str:
    if plan.seconds is None:
        return "unknown"
    how = "as the cells that are finished" if plan.measured else "a rough estimate"
    return f"{duration(plan.seconds)}, {how}"


def listing(plan: Plan) -> str:
    """Return the cells that a call would run, with the time each of them may take."""
    if len(plan.to_do) <= MOST_LINES:
        lines = [(cell.id, _time(plan, cell)) for cell in plan.to_do]
    else:
        lines = [
            ("-".join(cells[0].axes.values()), f"{_seeds(cells)}, each {time}")
            for cells, time in _combinations(plan)
        ]
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"  {name:{width}}  {rest}" for name, rest in lines)


def _combinations(plan: Plan) -> Iterator[tuple[list[Cell], str]]:
    """Yield the cells that differ in their seed alone, with the time of one."""
    alike: dict[tuple[str, ...], list[Cell]] = {}
    for cell in plan.to_do:
        alike.setdefault(tuple(cell.axes.values()), []).append(cell)
    for cells in alike.values():
        yield cells, _time(plan, cells[0])


def _seeds(cells: Sequence[Cell]) -> str:
    word = "seed" if len(cells) == 1 else "seeds"
    return f"{word} {', '.join(str(cell.seed) for cell in cells)}"


def _time(plan: Plan, cell: Cell) -> str:
    seconds = plan.guesses[cell.id].seconds
    return "unknown" if seconds is None else duration(seconds)
