"""Results folders of grids that were never run: invented numbers in real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from flfa_app.experiments.store import Cell, GridResults, GridSpec, write_grid
from flfa_app.results.records import Evaluation, RoundRecord, Timing
from tests.federation import default_keys

NUM_ROUNDS = 4
VERSIONS = {"python": "3.11.2", "flwr": "1.41.0"}
# Settings of configs/*.toml except the rounds: those that published numbers are for.
PAPER_SETTINGS = {
    "candidates": "all",
    "fraction-train": 0.1,
    "batch-size": 64,
    "learning-rate": 0.01,
}
# Axis -> value -> the keys that it sets.
Axes = Mapping[str, Mapping[str, Mapping[str, Any]]]
AXES: Axes = {
    "dataset": {
        "bloodmnist": {"dataset": "bloodmnist"},
        "pathmnist": {"dataset": "pathmnist"},
    },
    "method": {"fedavg": {"algorithm": "fedavg"}, "moon": {"algorithm": "moon"}},
    "flfa": {"none": {"flfa": "none"}, "lowest": {"flfa": "lowest"}},
}
# A grid file.
PAIR = """
title = "A pair"
nodes = 2
seeds = [0]
[axes.dataset.digits]
dataset = "digits"
[axes.method.fedavg]
[axes.method.moon]
algorithm = "moon"
"""


def make_grid(
    folder: Path,
    axes: Axes = AXES,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    title: str = "A small grid",
    table: str = "",
    metric: str = "score",
) -> GridResults:
    """Write ``grid.json`` without any run; with a table, its cells are the paper's."""
    names = {axis: list(values) for axis, values in axes.items()}
    cells = []
    for values in product(*names.values()):
        combination = dict(zip(names, values, strict=True))
        for seed in seeds:
            keys = default_keys() | {"model": "mobilenet_v2", "seed": seed}
            del keys["output-dir"]
            if table:
                long = combination["dataset"].startswith("cifar")
                keys |= PAPER_SETTINGS | {"num-server-rounds": 500 if long else 100}
            for axis, value in combination.items():
                keys |= axes[axis][value]
            nodes = keys.pop("nodes", 100 if table else 10)
            cell_id = "-".join([*values, f"s{seed}"])
            cells.append(Cell(cell_id, combination, seed, nodes, keys))
    spec = GridSpec(title, table, metric, list(seeds), names, "dataset")
    results = GridResults(folder, spec, cells)
    write_grid(results)
    return results


def find_cell(results: GridResults, seed: int = 0, **axes: str) -> Cell:
    """Return the cell with these axis values."""
    (cell,) = (
        cell
        for cell in results.cells
        if cell.seed == seed and axes.items() <= cell.axes.items()
    )
    return cell


def write_run(
    directory: Path,
    cell: Cell,
    score: float | None = 0.5,
    *,
    seconds: float = 1.0,
    drift: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    **summary: Any,
) -> None:
    """Write the files of a finished run of a cell; ``settings`` replace the cell's."""
    directory.mkdir(parents=True)
    run_config = {**cell.run_config, "output-dir": "/x", **(settings or {})}
    config = {
        "nodes": run_config.pop("nodes", cell.nodes),
        "run-config": run_config,
        "versions": VERSIONS,
        "git-commit": "c0ffee" + 34 * "0",
    }
    with_flfa = cell.run_config["flfa"] != "none"
    lines = []
    for number in range(1, NUM_ROUNDS + 1):
        accuracy = (score or 0.0) * number / NUM_ROUNDS
        record = RoundRecord(
            number,
            Evaluation(accuracy, auc=0.5 + accuracy / 2),
            drift=drift,
            selected=("features.0.0",) if with_flfa and number > 1 else (),
            scores={"features.0.0": 0.1, "features.1.conv.1": 0.3, "classifier.1": 0.9},
            timing=Timing(train=seconds, aggregate=0.0, evaluate=0.5),
        )
        lines.append(record.to_line())
    (directory / "metrics.jsonl").write_text("".join(lines))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "summary.json").write_text(json.dumps({"score": score, **summary}))


def finish_cell(
    results: GridResults, cell: Cell, score: float | None = 0.5, **run: Any
) -> Path:
    """Write the run directory of a cell, with the options of :func:`write_run`."""
    directory = results.run_directory(cell)
    write_run(directory, cell, score, **run)
    return directory


def finish_all(
    results: GridResults, score: Callable[[Cell], float] = lambda cell: 0.5, **run: Any
) -> None:
    """Write the run directories of all cells."""
    for cell in results.cells:
        finish_cell(results, cell, score(cell), **run)


def fail_cell(results: GridResults, cell: Cell, reason: str) -> None:
    """Write why a cell failed."""
    results.failure_file(cell).write_text(json.dumps({"reason": reason}))
