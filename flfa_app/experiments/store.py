"""The results folder of a grid: which cells it has, and how far each of them is.

::

    <out>/grid.json                 what was asked for: title, axes, all cells
    <out>/cells/<id>/               the run directory of a finished cell
    <out>/cells/<id>.failed.json    why the last attempt at a cell has failed
    <out>/logs/<id>.log             what Flower logged in that attempt
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flfa_app.config import ConfigError

__all__ = [
    "Cell",
    "Grid",
    "Results",
    "Status",
    "differences",
    "read_results",
    "write_grid",
    "write_json",
]

GRID = "grid.json"
CELLS = "cells"
LOGS = "logs"
# Where a run puts its files, how long it waits, what it draws: not what comes out.
NOT_SETTINGS = frozenset({"output-dir", "round-timeout", "pictures"})

Status = Literal["finished", "failed", "missing"]


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    ``axes`` says which value it has on each axis, ``run_config`` is the whole run
    config that follows from them, defaults included, without ``output-dir``.
    """

    id: str
    axes: dict[str, str]
    seed: int
    nodes: int
    run_config: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What a grid is about.

    Attributes
    ----------
    title : str
        For people.
    table : str
        Key of the paper's numbers; "" if there are none.
    metric : str
        Key of ``summary.json`` that the table shows.
    seeds : list[int]
        Every combination of axis values is run with each of them.
    axes : dict[str, list[str]]
        Axes and their values, in the order of the grid file.
    columns : str
        The axis that makes the columns of the table; the others make its rows.
    """

    title: str
    table: str
    metric: str
    seeds: list[int]
    axes: dict[str, list[str]]
    columns: str


@dataclass(frozen=True)
class Results:
    """A grid and what its results folder holds."""

    folder: Path
    grid: Grid
    cells: list[Cell]

    def directory(self, cell: Cell) -> Path:
        """Return the run directory of a cell; it is there if the cell is finished."""
        return self.folder / CELLS / cell.id

    def failure_file(self, cell: Cell) -> Path:
        """Return the file that says why a cell has failed."""
        return self.folder / CELLS / f"{cell.id}.failed.json"

    def log_file(self, cell: Cell) -> Path:
        """Return the file with all that Flower logged in an attempt that failed."""
        return self.folder / LOGS / f"{cell.id}.log"

    def status(self, cell: Cell) -> Status:
        """Return how far a cell is; whose settings it has is for :meth:`matches`."""
        if (self.directory(cell) / "summary.json").is_file():
            return "finished"
        return "failed" if self.failure_file(cell).is_file() else "missing"

    def summary(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished cell."""
        if self.status(cell) != "finished":
            return None
        return _read(self.directory(cell) / "summary.json")

    def rounds(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl`` of a finished cell; else nothing."""
        if self.status(cell) != "finished":
            return []
        file = self.directory(cell) / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]

    def failure(self, cell: Cell) -> str | None:
        """Return why the last attempt at a cell has failed, if it has."""
        if self.status(cell) != "failed":
            return None
        return str(_read(self.failure_file(cell))["reason"])

    def matches(self, cell: Cell) -> bool:
        """Tell whether the run in the cell's directory had the cell's settings."""
        return not differences(self.directory(cell), cell)


def differences(directory: Path, cell: Cell) -> list[str]:
    """Return what a run directory has otherwise than a cell asks for, key by key."""
    config = _read(directory / "config.json")
    then = {"nodes": config.get("nodes"), **config.get("run-config", {})}
    now = {"nodes": cell.nodes, **cell.run_config}
    keys = dict.fromkeys([*now, *then])
    return [
        f"{key} was {then.get(key, 'not there')!r}, is {now.get(key, 'not there')!r}"
        for key in keys
        if key not in NOT_SETTINGS and then.get(key) != now.get(key)
    ]


def write_grid(results: Results) -> None:
    """Write ``grid.json``."""
    grid = results.grid
    about = {
        "title": grid.title,
        "table": grid.table,
        "metric": grid.metric,
        "seeds": grid.seeds,
        "axes": grid.axes,
        "columns": grid.columns,
        "cells": [
            {
                "id": cell.id,
                "axes": cell.axes,
                "seed": cell.seed,
                "nodes": cell.nodes,
                "run-config": cell.run_config,
            }
            for cell in results.cells
        ],
    }
    (results.folder / CELLS).mkdir(parents=True, exist_ok=True)
    write_json(results.folder / GRID, about)


def read_results(out: Path) -> Results:
    """Read a results folder; raise :class:`ConfigError` if it is none."""
    file = out / GRID
    if not file.is_file():
        raise ConfigError(
            f"{out} is not a results folder: there is no {GRID} in it; make one with "
            "python -m flfa_app.experiments run GRID"
        )
    about = _read(file)
    try:
        cells = [
            Cell(
                id=cell["id"],
                axes=cell["axes"],
                seed=cell["seed"],
                nodes=cell["nodes"],
                run_config=cell["run-config"],
            )
            for cell in about["cells"]
        ]
        names = ("title", "table", "metric", "seeds", "axes", "columns")
        grid = Grid(**{name: about[name] for name in names})
    except KeyError as missing:
        raise ConfigError(f"{file} has no {missing.args[0]!r}") from missing
    return Results(out, grid, cells)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is either complete or not there."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=2) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} cannot be read: {problem}") from problem
    if not isinstance(content, dict):
        raise ConfigError(f"{file} cannot be read: it holds no JSON object")
    return content
