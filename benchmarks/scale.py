"""``python -m benchmarks.scale``: a round with 10,000 nodes against one with 100.

``flwr run`` with 10 participants a round; each client has six small images, whatever
the number of nodes. The runs take turns; the first rounds, in which the workers start
and see the partition for the first time, are left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.app_runs import run_app
from benchmarks.figures import of_measurements, output_file, publish
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import positive_int
from flfa_app.launch.superlink import local_superlink

__all__ = ["main"]

GOAL = "<= 1.10"
FEW, MANY, PARTICIPANTS = 100, 10_000, 10
IMAGES_OF_A_CLIENT, SIZE, CLASSES = 6, 16, 4
ROUNDS, LEFT_OUT = 23, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the goal is missed."""
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--turns", type=positive_int, default=3, help="runs of each (3)"
    )
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for nodes in (FEW, MANY):
            _write_images(Path(folder) / f"{nodes}.npz", nodes)
        for turn in range(options.turns):
            order = (FEW, MANY) if turn % 2 else (MANY, FEW)
            seconds = {nodes: _seconds(Path(folder), nodes) for nodes in order}
            ratios.append(seconds[MANY] / seconds[FEW])
    name = f"round with {MANY:,} nodes / with {FEW}, {PARTICIPANTS} participants"
    return publish([of_measurements(name, ratios, GOAL)], options.json)


def _write_images(file: Path, nodes: int) -> None:
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, number in (("train", nodes * IMAGES_OF_A_CLIENT), ("test", 100)):
        shape = (number, SIZE, SIZE)
        arrays[f"{part}_images"] = draw.integers(0, 256, shape, np.uint8)
        arrays[f"{part}_labels"] = np.arange(number) % CLASSES
    np.savez(file, **arrays)


def _seconds(folder: Path, nodes: int) -> float:
    """Run the app; return the median of its rounds."""
    keys = {
        "dataset": "files",
        "data-dir": str(folder / f"{nodes}.npz"),
        "partitioner": "iid",
        "fraction-train": PARTICIPANTS / nodes,
        "num-server-rounds": ROUNDS,
        "local-epochs": 20,
        "evaluate-every": 1000,
        "pictures": False,
    }
    with local_superlink(PROJECT) as superlink:
        records = run_app(superlink, keys, nodes=nodes, folder=folder / "runs")
    seconds = median(r.timing.without_evaluation for r in records[LEFT_OUT:])
    Console(stderr=True, highlight=False).print(f"{nodes} nodes: {seconds:.3f} s")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
