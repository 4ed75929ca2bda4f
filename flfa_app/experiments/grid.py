"""Grid files: many runs, described by the axes along which they differ."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.paper import tables
from flfa_app.experiments.analysis.quantities import METRICS
from flfa_app.experiments.gridfile import NODES, Axes, Reader, Value
from flfa_app.experiments.store import Cell, Grid
from flfa_app.launch.superlink import absolute_paths

__all__ = ["GridFile", "read_grid"]


@dataclass(frozen=True)
class GridFile:
    """A grid file that has no problems, and its cells."""

    path: Path
    grid: Grid
    cells: list[Cell]


def read_grid(path: Path, seeds: list[int] | None = None) -> GridFile:
    """Read and check a grid file, and every run config that follows from it.

    Parameters
    ----------
    path : Path
        A TOML file; ``docs/reproducing.md`` says what may be in it.
    seeds : list[int], optional
        More seeds than those of the file.

    Raises
    ------
    ConfigError
        With everything that is wrong, and where.
    """
    reader = _Expander(path)
    content = reader.load(path)
    file = reader.read(content, seeds or [])
    reader.stop_if_wrong()
    assert file is not None  # there would have been a problem
    return file


class _Expander(Reader):
    """Makes cells of what a file says."""

    def read(self, content: dict[str, Any], more_seeds: list[int]) -> GridFile | None:
        self.check_names(content)
        title = self.text(content, "title", None)
        table = self.name(content, "table", ["", *tables()])
        metric = self.name(content, "metric", METRICS)
        seeds = list(dict.fromkeys([*self.seeds(content), *more_seeds]))
        nodes = content.get(NODES)
        if nodes is not None:
            self.check_nodes(nodes, NODES)
        keys = self.table(content, "keys")
        self.check_keys(keys, "keys")
        axes = self.axes(content)
        columns = self.columns(content, axes)
        excluded = self.excluded(content, axes)
        # Cells of axes that are wrong would only repeat what is wrong with them.
        self.stop_if_wrong()
        cells = list(self._cells(axes, excluded, keys, nodes, seeds))
        if not cells and not self.problems:
            self.problems.append("exclude leaves no cell")
        if self.problems:
            return None
        names = {axis: list(values) for axis, values in axes.items()}
        grid = Grid(title, table, metric, seeds, names, columns)
        return GridFile(self.path, grid, _with_unique_ids(cells))

    def _cells(
        self,
        axes: Axes,
        excluded: list[dict[str, str]],
        keys: Mapping[str, Any],
        nodes: int | None,
        seeds: list[int],
    ) -> Iterator[Cell]:
        for chosen in itertools.product(*axes.values()):
            at = dict(zip(axes, chosen, strict=True))
            if any(rule.items() <= at.items() for rule in excluded):
                continue
            values = [axes[axis][name] for axis, name in at.items()]
            merged, origin = self._merge(values, keys)
            cell_nodes = merged.pop(NODES, nodes)
            if cell_nodes is None:
                self.problems.append(
                    "nodes is missing; say how many nodes are simulated"
                )
                continue
            for seed in seeds:
                asked = {**self.defaults, **merged, "seed": seed, "output-dir": ""}
                try:
                    config = RunConfig.parse(asked).as_keys()
                except ConfigError as problem:
                    self.problems += [_placed(p, origin) for p in _items(problem)]
                    continue
                del config["output-dir"]
                # As the run will have them: here is where a relative path is meant.
                config = absolute_paths(config)
                name = "-".join([*chosen, f"s{seed}"])
                yield Cell(name, at, seed, cell_nodes, config)

    def _merge(
        self, values: list[Value], keys: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the keys of a cell, and where each of them comes from."""
        merged: dict[str, Any] = {}
        origin: dict[str, str] = {}
        layers: list[list[tuple[str, Mapping[str, Any]]]] = [
            [(f"{v.place}.file", v.from_file) for v in values],
            [("keys", keys)],
            [(v.place, v.own) for v in values],
        ]
        for layer in layers:
            here: dict[str, str] = {}
            for place, sets in layer:
                for key, value in sets.items():
                    if key in here and merged[key] != value:
                        self.problems.append(
                            f"{key} is {merged[key]!r} in {here[key]}, but {value!r} "
                            f"in {place}; a cell has both"
                        )
                    merged[key] = value
                    here[key] = origin[key] = place
        return merged, origin


def _items(problem: ConfigError) -> list[str]:
    """Return the problems that a run config's error lists."""
    _, *items = str(problem).split("\n  - ")
    return items


def _placed(problem: str, origin: Mapping[str, str]) -> str:
    place = origin.get(problem.split()[0])
    return f"{place}: {problem}" if place else problem


def _with_unique_ids(cells: list[Cell]) -> list[Cell]:
    """Add a hash of the axis values where the names alone say too little.

    The values ``a-b`` and ``c`` of two axes make the same name as ``a`` and ``b-c``.
    """
    times = Counter(cell.id for cell in cells)
    return [
        cell if times[cell.id] == 1 else _renamed(cell, f"{cell.id}-{_hash(cell)}")
        for cell in cells
    ]


def _renamed(cell: Cell, name: str) -> Cell:
    return Cell(name, cell.axes, cell.seed, cell.nodes, cell.run_config)


def _hash(cell: Cell) -> str:
    # Not of the settings: a cell keeps its name, and where its data lie is no matter.
    values = json.dumps(cell.axes, sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()[:8]
