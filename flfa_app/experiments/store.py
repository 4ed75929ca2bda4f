"""The results folder of a grid: its cells, and the state of each of them.

::

    <out>/grid.json                 the grid: title, axes and all requested cells
    <out>/cells/<id>/               run directory of a finished cell
    <out>/cells/<id>.failed.json    why the last attempt at a cell failed
    <out>/logs/<id>.log             Flower's log of that attempt
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flfa_app.config import KEYS
from flfa_app.errors import ConfigError
from flfa_app.files import write_json
from flfa_app.results.records import RoundRecord, read_records

__all__ = [
    "Cell",
    "CellStatus",
    "GridResults",
    "GridSpec",
    "has_grid",
    "read_results",
    "write_grid",
]

GRID_FILE = "grid.json"
CELLS = "cells"
LOGS = "logs"
KEYS_WITHOUT_EFFECT = {name for name, key in KEYS.items() if not key.changes_results}

CellStatus = Literal["finished", "failed", "missing"]


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes
    ----------
    id : str
        Name of the run directory.
    axes : dict[str, str]
        The cell's value on each axis.
    seed, nodes : int
        Seed, and number of simulated nodes.
    run_config : dict[str, Any]
        The complete run config, defaults included, without ``output-dir``.
    """

    id: str
    axes: dict[str, str]
    seed: int
    nodes: int
    run_config: dict[str, Any]


@dataclass(frozen=True)
class GridSpec:
    """The description of a grid, without its cells.

    Attributes
    ----------
    title : str
        Heading of tables and report.
    table : str
        Key of the paper's table; "" if the grid reproduces none.
    metric : str
        Key of ``summary.json`` that the first table shows.
    seeds : list[int]
        Seeds that every combination of axis values is run with.
    axes : dict[str, list[str]]
        Axes and their values, in the order of the grid file.
    columns : str
        The axis that makes the columns of a table; the others make its rows.
    """

    title: str
    table: str
    metric: str
    seeds: list[int]
    axes: dict[str, list[str]]
    columns: str


@dataclass(frozen=True)
class GridResults:
    """A grid and its results folder."""

    folder: Path
    spec: GridSpec
    cells: list[Cell]

    def run_directory(self, cell: Cell) -> Path:
        """Return the run directory of a cell; it exists once the cell is finished."""
        return self.folder / CELLS / cell.id

    def failure_file(self, cell: Cell) -> Path:
        """Return the file that says why a cell failed."""
        return self.folder / CELLS / f"{cell.id}.failed.json"

    def log_file(self, cell: Cell) -> Path:
        """Return the file with Flower's log of a failed attempt."""
        return self.folder / LOGS / f"{cell.id}.log"

    def status(self, cell: Cell) -> CellStatus:
        """Return the state of a cell; a finished run may have other settings.

        A failed attempt counts more than an older run with other settings.
        """
        if self.failure_file(cell).is_file():
            return "finished" if self.is_complete(cell) else "failed"
        return "finished" if self.has_run(cell) else "missing"

    def has_run(self, cell: Cell) -> bool:
        """Tell whether the cell's directory holds a run that came to its end."""
        return (self.run_directory(cell) / "summary.json").is_file()

    def is_complete(self, cell: Cell) -> bool:
        """Tell whether the run is there, readable, and has the cell's settings."""
        return (
            self.has_run(cell)
            and self.damage(cell) is None
            and self.settings_match(cell)
        )

    def damage(self, cell: Cell) -> str | None:
        """Return which file of a finished run cannot be read, and the cure."""
        if not self.has_run(cell):
            return None
        try:
            for name in ("config.json", "summary.json"):
                self._read_run_file(cell, name)
            self._read_rounds(cell)
        except ConfigError as problem:
            return str(problem)
        return None

    def summary(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished cell."""
        return self._read_if_finished(cell, "summary.json")

    def config(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``config.json`` of a finished cell."""
        return self._read_if_finished(cell, "config.json")

    def rounds(self, cell: Cell) -> list[RoundRecord]:
        """Return the rounds of a finished cell; of any other none."""
        return self._read_rounds(cell) if self.status(cell) == "finished" else []

    def failure_reason(self, cell: Cell) -> str | None:
        """Return why the last attempt at a cell failed, if it did."""
        if self.status(cell) != "failed":
            return None
        file = self.failure_file(cell)
        return str(_read_json(file, f"delete {file}").get("reason", "not known"))

    def settings_match(self, cell: Cell) -> bool:
        """Tell whether the run in the cell's directory has the cell's settings."""
        return not self.setting_differences(cell)

    def setting_differences(self, cell: Cell) -> list[str]:
        """Return where the settings of a run differ from its cell's, key by key."""
        config = self._read_run_file(cell, "config.json")
        actual = {"nodes": config.get("nodes"), **config.get("run-config", {})}
        wanted = {"nodes": cell.nodes, **cell.run_config}
        absent = "not there"
        return [
            f"{key} was {actual.get(key, absent)!r}, is {wanted.get(key, absent)!r}"
            for key in dict.fromkeys([*wanted, *actual])
            if key not in KEYS_WITHOUT_EFFECT and actual.get(key) != wanted.get(key)
        ]

    def _read_if_finished(self, cell: Cell, name: str) -> dict[str, Any] | None:
        finished = self.status(cell) == "finished"
        return self._read_run_file(cell, name) if finished else None

    def _read_run_file(self, cell: Cell, name: str) -> dict[str, Any]:
        directory = self.run_directory(cell)
        return _read_json(directory / name, _cure_for_damage(directory))

    def _read_rounds(self, cell: Cell) -> list[RoundRecord]:
        directory = self.run_directory(cell)
        file = directory / "metrics.jsonl"
        try:
            return read_records(file)
        except (OSError, ValueError) as problem:
            raise _unreadable(file, problem, _cure_for_damage(directory)) from problem


def write_grid(results: GridResults) -> None:
    """Write ``grid.json``."""
    cells = [
        {name.replace("_", "-"): value for name, value in vars(cell).items()}
        for cell in results.cells
    ]
    (results.folder / CELLS).mkdir(parents=True, exist_ok=True)
    write_json(results.folder / GRID_FILE, {**vars(results.spec), "cells": cells})


def has_grid(folder: Path) -> bool:
    """Tell whether a folder is the results folder of a grid."""
    return (folder / GRID_FILE).is_file()


def read_results(folder: Path) -> GridResults:
    """Read a results folder.

    Raises
    ------
    ConfigError
        If the folder holds no ``grid.json``, or a damaged one.
    """
    file = folder / GRID_FILE
    if not has_grid(folder):
        raise ConfigError(
            f"{folder} is not a results folder: there is no {GRID_FILE} in it; make "
            "one with python -m flfa_app.experiments run GRID"
        )
    cure = f"delete {file} and run the grid again, with --seeds for further seeds"
    content = _read_json(file, cure)
    try:
        cells = [
            Cell(
                id=cell["id"],
                axes=cell["axes"],
                seed=cell["seed"],
                nodes=cell["nodes"],
                run_config=cell["run-config"],
            )
            for cell in content["cells"]
        ]
        keys = ("title", "table", "metric", "seeds", "axes", "columns")
        spec = GridSpec(**{key: content[key] for key in keys})
    except KeyError as missing:
        raise ConfigError(f"{file} has no {missing.args[0]!r}; {cure}") from missing
    return GridResults(folder, spec, cells)


def _read_json(file: Path, cure: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as problem:
        raise _unreadable(file, problem, cure) from problem
    return content


def _unreadable(file: Path, problem: Exception, cure: str) -> ConfigError:
    # str() of an OSError would repeat the file name.
    reason = getattr(problem, "strerror", None) or problem
    return ConfigError(f"{file} cannot be read: {reason}; {cure}")


def _cure_for_damage(directory: Path) -> str:
    return (
        "run the grid again, which keeps the damaged cell aside, or delete the folder "
        f"{directory}"
    )
