"""The results folder of a grid: which cells it has, and how far each of them is.

::

    <out>/grid.json                 what was asked for: title, axes, all cells
    <out>/cells/<id>/               the run directory of a finished cell
    <out>/cells/<id>.failed.json    why the last attempt at a cell has failed
    <out>/logs/<id>.log             what Flower logged in that attempt
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flfa_app.config import KEYS
from flfa_app.errors import ConfigError
from flfa_app.experiments.files import read_json, read_rounds, write_json
from flfa_app.results.records import RoundRecord

__all__ = [
    "Cell",
    "Grid",
    "Results",
    "Status",
    "differences",
    "has_grid",
    "read_results",
    "write_grid",
]

GRID = "grid.json"
CELLS = "cells"
LOGS = "logs"
NOT_SETTINGS = {name for name, key in KEYS.items() if not key.changes_results}

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
        """Return how far a cell is; whose settings it has is for :meth:`matches`.

        An attempt that has failed after a run with other settings is what counts.
        """
        if self.failure_file(cell).is_file():
            return "finished" if self.is_done(cell) else "failed"
        return "finished" if self.has_ended(cell) else "missing"

    def has_ended(self, cell: Cell) -> bool:
        """Tell whether a run is there that has come to its end, whatever it is."""
        return (self.directory(cell) / "summary.json").is_file()

    def is_done(self, cell: Cell) -> bool:
        """Tell whether nothing is left to do: a whole run with the cell's settings."""
        return (
            self.has_ended(cell)
            and self.damage(cell) is None
            and not differences(self.directory(cell), cell)
        )

    def damage(self, cell: Cell) -> str | None:
        """Return which file of a run directory cannot be read, and what to do."""
        if not self.has_ended(cell):
            return None
        directory = self.directory(cell)
        try:
            for name in ("config.json", "summary.json"):
                read_json(directory / name, _again(directory))
            read_rounds(directory / "metrics.jsonl", _again(directory))
        except ConfigError as problem:
            return str(problem)
        return None

    def summary(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished cell."""
        return self._file(cell, "summary.json")

    def config(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``config.json`` of a finished cell."""
        return self._file(cell, "config.json")

    def _file(self, cell: Cell, name: str) -> dict[str, Any] | None:
        if self.status(cell) != "finished":
            return None
        directory = self.directory(cell)
        return read_json(directory / name, _again(directory))

    def rounds(self, cell: Cell) -> list[RoundRecord]:
        """Return the rounds of a finished cell; none of any other."""
        if self.status(cell) != "finished":
            return []
        directory = self.directory(cell)
        return read_rounds(directory / "metrics.jsonl", _again(directory))

    def failure(self, cell: Cell) -> str | None:
        """Return why the last attempt at a cell has failed, if it has."""
        if self.status(cell) != "failed":
            return None
        file = self.failure_file(cell)
        return str(read_json(file, f"delete {file}").get("reason", "not known"))

    def matches(self, cell: Cell) -> bool:
        """Tell whether the run in the cell's directory had the cell's settings."""
        return not differences(self.directory(cell), cell)


def differences(directory: Path, cell: Cell) -> list[str]:
    """Return what a run directory has otherwise than a cell asks for, key by key."""
    config = read_json(directory / "config.json", _again(directory))
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


def has_grid(out: Path) -> bool:
    """Tell whether a folder is the results folder of a grid."""
    return (out / GRID).is_file()


def read_results(out: Path) -> Results:
    """Read a results folder; raise :class:`ConfigError` if it is none."""
    file = out / GRID
    if not has_grid(out):
        raise ConfigError(
            f"{out} is not a results folder: there is no {GRID} in it; make one with "
            "python -m flfa_app.experiments run GRID"
        )
    cure = f"delete {file} and run the grid again, with --seeds for further seeds"
    about = read_json(file, cure)
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
        raise ConfigError(f"{file} has no {missing.args[0]!r}; {cure}") from missing
    return Results(out, grid, cells)


def _again(directory: Path) -> str:
    return (
        "run the grid again, which keeps the damaged cell aside, or delete the folder "
        f"{directory}"
    )
