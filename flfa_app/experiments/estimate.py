"""How long a cell takes: as the cells before it, or a rough calculation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from flfa_app.experiments.store import Cell, Results

__all__ = ["Guess", "cell_seconds", "images_per_round"]

# All that a cell does beside its rounds, two at a time on two cores: the cells of
# quick.toml took 17.7 s each, 4.2 s of it in rounds (2026-11-17, a busy machine).
START_SECONDS = 14.0
# Forward, backward and update for one image on one core, up to 32x32 pixels;
# docs/reproducing.md says how it was measured. Another machine is faster or slower.
IMAGE_SECONDS = {"cnn": 0.0003, "mobilenet_v2": 0.0083, "resnet50": 0.135}
# Training images, as the paper lists them.
TRAIN_IMAGES = {
    "digits": 1438,
    "bloodmnist": 11_959,
    "organcmnist": 12_975,
    "organsmnist": 13_932,
    "pathmnist": 89_996,
    "fashionmnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
}


class Guess(NamedTuple):
    """Seconds of a cell, None if nothing is known, and whether they were measured."""

    seconds: float | None
    measured: bool


def cell_seconds(results: Results, cell: Cell, workers: int) -> Guess:
    """Return how long a cell may take.

    As long as the finished cells of the same method and data set in this results
    folder, a round; else as many images as it trains on, times the seconds of one.
    """
    measured = [
        summary["seconds"] / summary["rounds"]
        for other in results.cells
        if _alike(other.run_config, cell.run_config)
        and (summary := results.summary(other)) is not None
    ]
    rounds = cell.run_config["num-server-rounds"]
    if measured:
        return Guess(statistics.fmean(measured) * rounds, measured=True)
    model, images = cell.run_config["model"], images_per_round(cell)
    if model not in IMAGE_SECONDS or images is None:
        return Guess(None, measured=False)
    training = rounds * images * IMAGE_SECONDS[model] / workers
    return Guess(START_SECONDS + training, measured=False)


def images_per_round(cell: Cell) -> float | None:
    """Return how many images all clients of a round train on, on average.

    An image counts in each epoch; None for a data set whose size is not known here.
    """
    keys = cell.run_config
    if keys["dataset"] not in TRAIN_IMAGES:
        return None
    images = TRAIN_IMAGES[keys["dataset"]] * keys["train-fraction"]
    participants = max(keys["min-train-nodes"], keys["fraction-train"] * cell.nodes)
    share = min(1.0, participants / cell.nodes)
    return float(images * share * keys["local-epochs"])


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether a round of one costs what a round of the other costs, roughly."""
    keys = ["dataset", "model", "algorithm", "local-epochs"]
    keys += ["fraction-train", "train-fraction"]
    return all(one[key] == other[key] for key in keys)
