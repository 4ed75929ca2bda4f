"""GridResults folders of grids that nobody has run: made-up numbers in real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from flfa_app.experiments.store import Cell, GridResults, GridSpec, write_grid
from tests.federation import default_keys

ROUNDS = 4
VERSIONS = {"python": "3.11.2", "flwr": "1.41.0"}
# What configs/*.toml set, but for the rounds: the paper's numbers stand only beside it.
PAPER = {
    "candidates": "all",
    "fraction-train": 0.1,
    "batch-size": 64,
    "learning-rate": 0.01,
}
# Axis -> value -> the keys it sets.
Axes = Mapping[str, Mapping[str, Mapping[str, Any]]]
AXES: Axes = {
    "dataset": {
        "bloodmnist": {"dataset": "bloodmnist"},
        "pathmnist": {"dataset": "pathmnist"},
    },
    "method": {"fedavg": {"algorithm": "fedavg"}, "moon": {"algorithm": "moon"}},
    "flfa": {"none": {"flfa": "none"}, "lowest": {"flfa": "lowest"}},
}


def make_grid(
    folder: Path,
    axes: Axes = AXES,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    title: str = "A small grid",
    table: str = "",
    metric: str = "score",
) -> GridResults:
    """Write ``grid.json`` of a grid without any run; with a table, as the paper's."""
    names = {axis: list(values) for axis, values in axes.items()}
    cells = []
    for values in product(*names.values()):
        chosen = dict(zip(names, values, strict=True))
        for seed in seeds:
            keys = default_keys() | {"model": "mobilenet_v2", "seed": seed}
            if table:
                long = chosen["dataset"].startswith("cifar")
                keys |= PAPER | {"num-server-rounds": 500 if long else 100}
            for axis, value in chosen.items():
                keys |= axes[axis][value]
            nodes = keys.pop("nodes", 100 if table else 10)
            cells.append(
                Cell("-".join([*values, str(seed)]), chosen, seed, nodes, keys)
            )
    grid = GridSpec(title, table, metric, list(seeds), names, "dataset")
    results = GridResults(folder, grid, cells)
    write_grid(results)
    return results


def cell_of(results: GridResults, seed: int = 0, **axes: str) -> Cell:
    """Return the cell with these axis values."""
    (found,) = (
        cell
        for cell in results.cells
        if cell.seed == seed and axes.items() <= cell.axes.items()
    )
    return found


def finish(
    results: GridResults,
    cell: Cell,
    score: float | None,
    *,
    seconds: float = 1.0,
    drift: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    **summary: Any,
) -> None:
    """Write the run directory of a cell, as if it had been run."""
    directory = results.run_directory(cell)
    directory.mkdir(parents=True)
    selects = cell.run_config["flfa"] != "none"
    config = {
        "run-config": cell.run_config | dict(settings or {}) | {"output-dir": "/x"},
        "nodes": cell.nodes,
        "versions": VERSIONS,
        "git-commit": "c0ffee" + 34 * "0",
    }
    rows = [
        {
            "round": i,
            "accuracy": (score or 0.0) * i / ROUNDS,
            "auc": 0.5 + (score or 0.0) * i / ROUNDS / 2,
            "drift": drift,
            "selected": ["features.0.0"] if selects and i > 1 else [],
            "scores": {
                "features.0.0": 0.1,
                "features.1.conv.1": 0.3,
                "classifier.1": 0.9,
            },
            "seconds": {"train": seconds, "aggregate": 0.0, "evaluate": 0.5},
        }
        for i in range(1, ROUNDS + 1)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (directory / "metrics.jsonl").write_text(lines)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "summary.json").write_text(json.dumps({"score": score, **summary}))


def fail(results: GridResults, cell: Cell, reason: str) -> None:
    """Write why a cell has failed."""
    results.failure_file(cell).write_text(json.dumps({"reason": reason}))


def finish_all(
    results: GridResults, score: Callable[[Cell], float], **more: Any
) -> None:
    """Finish all cells."""
    for cell in results.cells:
        finish(results, cell, score(cell), **more)
