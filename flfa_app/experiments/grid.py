"""Grids: many runs, described by the axes along which they differ."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.experiments.grid_file import NODES, AxisValue, GridFile, parse_grid_file
from flfa_app.experiments.store import Cell, GridSpec
from flfa_app.launch.app_files import absolute_paths, default_run_config


class ExpandedGrid(NamedTuple):
    """A grid and all of its cells."""

    spec: GridSpec
    cells: list[Cell]


def read_grid(path: Path, extra_seeds: Sequence[int] = ()) -> ExpandedGrid:
    """Read a grid file, which ``docs/grids.md`` describes; check every run config.

    ``extra_seeds`` are added to those of the file. Raises ConfigError with all
    problems, and where in the file each of them is.
    """
    file = parse_grid_file(path, extra_seeds)
    problems: list[str] = []
    cells = list(_expand(file, problems))
    if not cells and not problems:
        problems.append("exclude leaves no cell")
    if problems:
        raise ConfigError(f"{path} cannot be used:", dict.fromkeys(problems))
    return ExpandedGrid(file.spec, _with_unique_ids(cells))


def _expand(file: GridFile, problems: list[str]) -> Iterator[Cell]:
    """Yield a cell for each combination and seed; add what is wrong to ``problems``."""
    defaults = default_run_config()
    for names in itertools.product(*file.axes.values()):
        combination = dict(zip(file.axes, names, strict=True))
        if any(rule.items() <= combination.items() for rule in file.excluded):
            continue
        values = [file.axes[axis][name] for axis, name in combination.items()]
        keys, places = _merge_keys(file.keys, values, problems)
        nodes = keys.pop(NODES, file.nodes)
        if nodes is None:
            problems.append("nodes is missing; say how many nodes are simulated")
            continue
        for seed in file.spec.seeds:
            try:
                config = RunConfig.parse(
                    {**defaults, **keys, "seed": seed, "output-dir": ""}
                ).as_keys()
            except ConfigError as error:
                problems += [_with_place(text, places) for text in error.problems]
                continue
            del config["output-dir"]
            # Relative paths refer to the present directory, not to the run's.
            config = absolute_paths(config)
            cell_id = "-".join([*names, f"s{seed}"])
            yield Cell(cell_id, combination, seed, nodes, config)


def _merge_keys(
    grid_keys: Mapping[str, Any], values: Sequence[AxisValue], problems: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of a combination, and the place each of them comes from.

    Later layers override earlier ones. Two values that set a key differently are a
    problem.
    """
    merged: dict[str, Any] = {}
    places: dict[str, str] = {}
    layers: list[list[tuple[str, Mapping[str, Any]]]] = [
        [(f"{value.place}.file", value.file_keys) for value in values],
        [("keys", grid_keys)],
        [(value.place, value.own_keys) for value in values],
    ]
    for layer in layers:
        layer_places: dict[str, str] = {}
        for place, keys in layer:
            for key, value in keys.items():
                if key in layer_places and merged[key] != value:
                    problems.append(
                        f"{key} is {merged[key]!r} in {layer_places[key]}, but "
                        f"{value!r} in {place}; a cell has both"
                    )
                merged[key] = value
                layer_places[key] = places[key] = place
    return merged, places


def _with_place(problem: str, places: Mapping[str, str]) -> str:
    """Prefix a problem of a run config, which begins with its key, with the place."""
    place = places.get(problem.split()[0])
    return f"{place}: {problem}" if place else problem


def _with_unique_ids(cells: list[Cell]) -> list[Cell]:
    """Add a hash of the axis values to ids that occur more than once.

    The values ``a-b`` and ``c`` of two axes make the same id as ``a`` and ``b-c``.
    """
    counts = Counter(cell.id for cell in cells)
    unique = []
    for cell in cells:
        if counts[cell.id] > 1:
            # Without the run config: an id stays when the data are moved.
            values = json.dumps(cell.axes, sort_keys=True)
            digest = hashlib.sha256(values.encode()).hexdigest()[:8]
            cell = replace(cell, id=f"{cell.id}-{digest}")
        unique.append(cell)
    return unique
