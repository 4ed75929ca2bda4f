"""The results folder of a grid: its cells, and the state of each of them.

::

    <out>/grid.json                 the grid: title, axes and all requested cells
    <out>/cells/<id>/               run directory of a finished cell
    <out>/cells/<id>.failed.json    why the last attempt at a cell failed
    <out>/logs/<id>.log             Flower's log of that attempt
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from flfa_app.config import KEYS
from flfa_app.errors import ConfigError
from flfa_app.files import write_json
from flfa_app.results.records import RoundRecord, read_records

GRID_FILE = "grid.json"
CELLS = "cells"
KEYS_WITHOUT_EFFECT = {name for name, key in KEYS.items() if not key.changes_results}

CellStatus = Literal["finished", "failed", "missing"]
Content = TypeVar("Content")


@dataclass(frozen=True)
class Cell:
    """One run of a grid; ``id`` names its run directory.

    ``axes`` has the cell's value on each axis. ``run_config`` is complete, defaults
    included, but without ``output-dir``.
    """

    id: str
    axes: dict[str, str]
    seed: int
    nodes: int
    run_config: dict[str, Any]


@dataclass(frozen=True)
class GridSpec:
    """The description of a grid, without its cells.

    ``table`` is the key of the paper's table, "" if the grid reproduces none, and
    ``metric`` the key of ``summary.json`` that the first table shows. ``axes`` are in
    the order of the grid file; the axis ``columns`` makes the columns of a table, the
    others make its rows.
    """

    title: str
    table: str
    metric: str
    seeds: list[int]
    axes: dict[str, list[str]]
    columns: str


Item = TypeVar("Item", Cell, GridSpec)


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
        return self.folder / "logs" / f"{cell.id}.log"

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
        if not self.has_run(cell) or self.damage(cell):
            return False
        return not self.setting_differences(cell)

    def damage(self, cell: Cell) -> str | None:
        """Return which file of a finished run cannot be read, and the cure."""
        if not self.has_run(cell):
            return None
        try:
            self._read(cell, "config.json", _read_object)
            self._read(cell, "summary.json", _read_object)
            self._read(cell, "metrics.jsonl", read_records)
        except ConfigError as problem:
            return str(problem)
        return None

    def summary(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``summary.json`` of a finished cell."""
        finished = self.status(cell) == "finished"
        return self._read(cell, "summary.json", _read_object) if finished else None

    def config(self, cell: Cell) -> dict[str, Any] | None:
        """Return ``config.json`` of a finished cell."""
        finished = self.status(cell) == "finished"
        return self._read(cell, "config.json", _read_object) if finished else None

    def rounds(self, cell: Cell) -> list[RoundRecord]:
        """Return the rounds of a finished cell; of any other none."""
        finished = self.status(cell) == "finished"
        return self._read(cell, "metrics.jsonl", read_records) if finished else []

    def failure_reason(self, cell: Cell) -> str | None:
        """Return why the last attempt at a cell failed, if it did."""
        if self.status(cell) != "failed":
            return None
        file = self.failure_file(cell)
        failure = _read_file(file, _read_object, f"delete {file}")
        return str(failure.get("reason", "not known"))

    def setting_differences(self, cell: Cell) -> list[str]:
        """Return where the settings of a run differ from its cell's, key by key."""
        config = self._read(cell, "config.json", _read_object)
        actual = {"nodes": config.get("nodes"), **config.get("run-config", {})}
        wanted = {"nodes": cell.nodes, **cell.run_config}
        absent = "not there"
        return [
            f"{key} was {actual.get(key, absent)!r}, is {wanted.get(key, absent)!r}"
            for key in dict.fromkeys([*wanted, *actual])
            if key not in KEYS_WITHOUT_EFFECT and actual.get(key) != wanted.get(key)
        ]

    def _read(self, cell: Cell, name: str, read: Callable[[Path], Content]) -> Content:
        directory = self.run_directory(cell)
        cure = "run the grid again, which keeps the damaged cell aside, or delete the"
        return _read_file(directory / name, read, f"{cure} folder {directory}")


def write_grid(results: GridResults) -> None:
    """Write ``grid.json``."""
    (results.folder / CELLS).mkdir(parents=True, exist_ok=True)
    content = {**_to_json(results.spec), "cells": list(map(_to_json, results.cells))}
    write_json(results.folder / GRID_FILE, content)


def has_grid(folder: Path) -> bool:
    """Tell whether a folder is the results folder of a grid."""
    return (folder / GRID_FILE).is_file()


def read_results(folder: Path) -> GridResults:
    """Read a results folder; ConfigError if its ``grid.json`` is missing or damaged."""
    file = folder / GRID_FILE
    if not has_grid(folder):
        raise ConfigError(
            f"{folder} is not a results folder: there is no {GRID_FILE} in it; make "
            "one with python -m flfa_app.experiments run GRID"
        )
    cure = f"delete {file} and run the grid again, with --seeds for further seeds"
    content = _read_file(file, _read_object, cure)
    try:
        cells = [_from_json(Cell, cell) for cell in content["cells"]]
        return GridResults(folder, _from_json(GridSpec, content), cells)
    except KeyError as missing:
        raise ConfigError(f"{file} has no {missing.args[0]!r}; {cure}") from missing


def _to_json(item: Cell | GridSpec) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in vars(item).items()}


def _from_json(kind: type[Item], content: Mapping[str, Any]) -> Item:
    names = [field.name for field in fields(kind)]
    return kind(**{name: content[name.replace("_", "-")] for name in names})


def _read_object(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text("utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def _read_file(file: Path, read: Callable[[Path], Content], cure: str) -> Content:
    """Read a file; turn an error into one that names the file and the cure."""
    try:
        return read(file)
    except (OSError, ValueError) as problem:
        # str() of an OSError would repeat the file name.
        reason = getattr(problem, "strerror", None) or problem
        raise ConfigError(f"{file} cannot be read: {reason}; {cure}") from problem
