"""The plan of a call: which cells are finished, which will be run, and how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.experiments.grid import read_grid
from flfa_app.experiments.progress import format_duration
from flfa_app.experiments.store import Cell, GridResults, has_grid, read_results
from flfa_app.experiments.time_estimate import estimate_cell, measure_rounds, workload

# A dry run lists up to so many cells one by one; of more, it groups the seeds.
MAX_LISTED_CELLS = 30


@dataclass(frozen=True)
class Plan:
    """The cells of a call, and how they are run.

    ``concurrent_cells`` run at the same time, each with ``workers``. ``seconds`` is
    the time of all pending cells, None if it is unknown, and ``measured`` if all
    ``estimates`` (seconds by cell id) come from finished cells.
    """

    results: GridResults
    finished: list[Cell]
    pending: list[Cell]
    concurrent_cells: int
    workers: int
    seconds: float | None
    measured: bool
    estimates: dict[str, float | None]


def open_grid(
    path: Path,
    folder: Path,
    only: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[int] = (),
) -> tuple[GridResults, list[Cell]]:
    """Read a grid file; return all cells requested so far, and those of this call.

    ``only`` selects values by axis. ``seeds`` are those of this call, which the file
    need not have; without any, they are those of the file. Seeds that earlier calls
    have added are only in the folder's ``grid.json``; they stay in the tables.
    """
    file_seeds = read_grid(path).spec.seeds
    earlier = read_results(folder) if has_grid(folder) else None
    earlier_seeds = earlier.spec.seeds if earlier else []
    spec, cells = read_grid(path, [*earlier_seeds, *seeds])
    selected = select_cells(
        GridResults(folder, spec, cells), only or {}, seeds or file_seeds
    )
    # A seed that was requested for some cells is not missing in the others.
    requested = {cell.id for cell in [*selected, *(earlier.cells if earlier else [])]}
    cells = [c for c in cells if c.seed in file_seeds or c.id in requested]
    return GridResults(folder, spec, cells), selected


def select_cells(
    results: GridResults, only: Mapping[str, Sequence[str]], seeds: Sequence[int]
) -> list[Cell]:
    """Return the cells with these axis values and seeds; empty ones select all.

    Raises ConfigError if the grid lacks an axis or a value, or no cell is left.
    """
    axes = results.spec.axes
    problems = []
    for axis, values in only.items():
        if axis not in axes:
            problems.append(f"--only {axis}: not an axis; there are {', '.join(axes)}")
            continue
        names = ", ".join(axes[axis])
        problems += [
            f"--only {axis}={value}: not a value; there are {names}"
            for value in values
            if value not in axes[axis]
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    selected = [
        cell
        for cell in results.cells
        if all(cell.axes[axis] in values for axis, values in only.items())
        and (not seeds or cell.seed in seeds)
    ]
    if not selected:
        raise ConfigError("--only: the grid has no cell with these values")
    return selected


def make_plan(results: GridResults, selected: list[Cell], workers: int) -> Plan:
    """Plan the run of the selected cells.

    Workers are shared out to as many cells as possible: starting, aggregating and
    evaluating a run is no faster with a second worker.
    """
    complete = {cell.id: cell for cell in results.cells if results.is_complete(cell)}
    pending = [cell for cell in selected if cell.id not in complete]
    concurrent_cells = max(1, min(workers, len(pending)))
    workers_each = max(1, workers // concurrent_cells)
    round_seconds = measure_rounds(results, complete.values())
    estimates = {
        cell.id: estimate_cell(cell, workers_each, round_seconds) for cell in pending
    }
    seconds = [x for x in estimates.values() if x is not None]
    all_known = len(seconds) == len(estimates)
    return Plan(
        results=results,
        finished=[cell for cell in selected if cell.id in complete],
        pending=pending,
        concurrent_cells=concurrent_cells,
        workers=workers_each,
        seconds=sum(seconds) / concurrent_cells if all_known else None,
        measured=all(workload(cell) in round_seconds for cell in pending),
        estimates=estimates,
    )


def check_data(cells: Sequence[Cell]) -> None:
    """Raise :class:`ConfigError` with all problems of data, models and machine."""
    # Imported here because it imports torch, which takes seconds.
    from flfa_app.preflight import prepare

    problems: dict[str, None] = {}  # ordered, without duplicates
    checked = set()
    for cell in cells:
        config = RunConfig.parse({**cell.run_config, "output-dir": ""})
        # Neither data nor model depend on these keys: one check for all their values.
        config = replace(config, algorithm="fedavg", num_server_rounds=1)
        if (config, cell.nodes) not in checked:
            checked.add((config, cell.nodes))
            try:
                prepare(config, cell.nodes)
            except ConfigError as error:
                found = (f"{config.dataset}: {text}" for text in error.problems)
                problems |= dict.fromkeys(found)
    if problems:
        raise ConfigError("the grid cannot start:", problems)


def describe_plan(plan: Plan) -> str:
    """Return what a call will do, in a few lines."""
    results, finished, pending = plan.results, len(plan.finished), len(plan.pending)
    lines = [
        results.spec.title,
        f"Results: {results.folder}",
        f"{finished + pending} cells: {finished} finished, {pending} to do",
    ]
    replaced = [cell for cell in plan.pending if results.has_run(cell)]
    damages = [damage for cell in replaced if (damage := results.damage(cell))]
    if others := len(replaced) - len(damages):
        lines.append(f"{others} of them have results with other settings: kept aside")
    if damages:
        lines.append(f"{len(damages)} of them are damaged: kept aside, run again")
        lines += [f"  - {damage.partition(';')[0]}" for damage in damages]
    if plan.pending:
        time = _format_time(plan.seconds)
        if plan.seconds is not None:
            measured = "measured on finished cells"
            time += f", {measured if plan.measured else 'a rough estimate'}"
        lines.append(
            f"{plan.concurrent_cells} at a time, workers for each: {plan.workers}; "
            f"time needed: {time}"
        )
    return "\n".join(lines)


def list_cells(plan: Plan) -> str:
    """Return the pending cells with the time that each of them may take."""
    times = {cell: _format_time(seconds) for cell, seconds in plan.estimates.items()}
    if len(plan.pending) <= MAX_LISTED_CELLS:
        lines = list(times.items())
    else:
        combinations: dict[tuple[str, ...], list[Cell]] = {}
        for cell in plan.pending:
            combinations.setdefault(tuple(cell.axes.values()), []).append(cell)
        lines = [
            ("-".join(values), f"{_format_seeds(cells)}, each {times[cells[0].id]}")
            for values, cells in combinations.items()
        ]
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"  {name:{width}}  {rest}" for name, rest in lines)


def _format_seeds(cells: Sequence[Cell]) -> str:
    word = "seed" if len(cells) == 1 else "seeds"
    return f"{word} {', '.join(str(cell.seed) for cell in cells)}"


def _format_time(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_duration(seconds)
