"""What a call will do: which cells are finished, which are to be run, how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.experiments.store import Cell, Results
from flfa_app.experiments.time_estimate import Guess, cell_seconds, measured_rounds
from flfa_app.preflight import prepare
from flfa_app.task import shards_of

__all__ = ["Plan", "check_data", "choose", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """The cells of a call, and how they are run.

    ``seconds`` is None where it is not known; ``measured`` says that it comes from
    cells that are finished. ``guesses`` are those of the cells to do, by their id.
    """

    results: Results
    chosen: list[Cell]
    finished: list[Cell]
    to_do: list[Cell]
    cells_at_a_time: int
    workers: int
    seconds: float | None
    measured: bool
    guesses: dict[str, Guess]


def choose(
    results: Results, only: Mapping[str, Sequence[str]], seeds: Sequence[int]
) -> list[Cell]:
    """Return the cells with these axis values and seeds; nothing given: all.

    Raises
    ------
    ConfigError
        If an axis or a value is not of the grid, or no cell is left.
    """
    axes = results.grid.axes
    problems = [
        f"--only {axis}: not an axis; there are {', '.join(axes)}"
        for axis in only
        if axis not in axes
    ]
    problems += [
        f"--only {axis}={value}: not a value; there are {', '.join(axes[axis])}"
        for axis, values in only.items()
        for value in values
        if axis in axes and value not in axes[axis]
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    chosen = [
        cell
        for cell in results.cells
        if all(cell.axes[axis] in values for axis, values in only.items())
        and (not seeds or cell.seed in seeds)
    ]
    if not chosen:
        raise ConfigError("--only: the grid has no cell with these values")
    return chosen


def make_plan(results: Results, chosen: list[Cell], workers: int) -> Plan:
    """Return what is to be done for the chosen cells.

    Several cells at a time with one worker each, because a run has parts that no second
    worker makes faster: starting, aggregating, evaluating.
    """
    done = {cell.id: cell for cell in results.cells if results.is_done(cell)}
    finished = [cell for cell in chosen if cell.id in done]
    to_do = [cell for cell in chosen if cell.id not in done]
    at_a_time = max(1, min(workers, len(to_do)))
    each = max(1, workers // at_a_time)
    measured = measured_rounds(results, done.values())
    guesses = {cell.id: cell_seconds(cell, each, measured) for cell in to_do}
    known = [x.seconds for x in guesses.values() if x.seconds is not None]
    return Plan(
        results=results,
        chosen=chosen,
        finished=finished,
        to_do=to_do,
        cells_at_a_time=at_a_time,
        workers=each,
        seconds=sum(known) / at_a_time if len(known) == len(guesses) else None,
        measured=all(guess.measured for guess in guesses.values()),
        guesses=guesses,
    )


def check_data(cells: Sequence[Cell]) -> None:
    """Raise :class:`ConfigError` with all that data, models or machine lack."""
    problems: dict[str, None] = {}  # in their order, each once
    prepared: dict[RunConfig, list[str]] = {}
    dealt_out: set[tuple[RunConfig, int]] = set()
    for cell in cells:
        config = RunConfig.parse({**cell.run_config, "output-dir": ""})
        # These say nothing about data or model: looked at once for all of them.
        config = replace(config, algorithm="fedavg", num_server_rounds=1)
        start = replace(config, seed=0)
        if start not in prepared:
            prepared[start] = _start_problems(start)
        found = list(prepared[start])
        # Whether the images are enough for all nodes depends on the seed, not on FLFA.
        share = (replace(config, flfa="none", fixed_fa_layers=""), cell.nodes)
        if not found and share not in dealt_out:
            dealt_out.add(share)
            found = _partition_problems(*share)
        problems |= dict.fromkeys(f"{config.dataset}: {problem}" for problem in found)
    if problems:
        raise ConfigError("the grid cannot start:", problems)


def _start_problems(config: RunConfig) -> list[str]:
    try:
        prepare(config)
    except ConfigError as problem:
        return list(problem.problems)
    return []


def _partition_problems(config: RunConfig, nodes: int) -> list[str]:
    try:
        shards_of(config, nodes)
    except ValueError as problem:
        return [str(problem)]
    return []
