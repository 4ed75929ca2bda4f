"""How long a cell takes: as the cells before it, or a rough calculation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flfa_app.experiments.store import Cell, Results

__all__ = ["Guess", "Kind", "cell_seconds", "images_per_round", "measured_rounds"]

# All that a cell does beside its rounds, two at a time on two cores: the cells of
# quick.toml took 17.7 s each, 4.2 s of it in rounds (2026-11-17, a busy machine).
START_SECONDS = 14.0
# Forward, backward and update for one image on one core, up to 32x32 pixels;
# docs/reproducing.md says how it was measured. Another machine is faster or slower.
IMAGE_SECONDS = {"cnn": 0.0003, "mobilenet_v2": 0.0053, "resnet50": 0.081}
# An evaluation is the forward pass alone; the backward pass costs about two of them.
EVALUATION_SHARE = 1 / 3
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
# Images that the global model is evaluated on.
TEST_IMAGES = {
    "digits": 359,
    "bloodmnist": 3421,
    "organcmnist": 8216,
    "organsmnist": 8827,
    "pathmnist": 7180,
    "fashionmnist": 10_000,
    "cifar10": 10_000,
    "cifar100": 10_000,
}
# What a round of two cells costs alike, roughly, if it is the same.
ALIKE = ["dataset", "model", "algorithm", "local-epochs"]
ALIKE += ["fraction-train", "train-fraction"]

Kind = tuple[Any, ...]
"""The values of :data:`ALIKE`."""


class Guess(NamedTuple):
    """Seconds of a cell, None if nothing is known, and whether they were measured."""

    seconds: float | None
    measured: bool


def measured_rounds(results: Results, finished: Iterable[Cell]) -> dict[Kind, float]:
    """Return how many seconds a round took on average, of each kind of cell."""
    found: dict[Kind, list[float]] = {}
    for cell in finished:
        summary = results.summary(cell) or {}
        if summary.get("seconds") and summary.get("rounds"):
            seconds = summary["seconds"] / summary["rounds"]
            found.setdefault(_kind(cell), []).append(seconds)
    return {kind: statistics.fmean(seconds) for kind, seconds in found.items()}


def cell_seconds(cell: Cell, workers: int, measured: Mapping[Kind, float]) -> Guess:
    """Return how long a cell may take.

    As long as the finished cells of the same method and data set, a round; else the
    images it trains on and is evaluated on, times the seconds of one. The server
    evaluates beside the next round's training, but on the same cores.
    """
    rounds = cell.run_config["num-server-rounds"]
    if _kind(cell) in measured:
        return Guess(measured[_kind(cell)] * rounds, measured=True)
    model, images = cell.run_config["model"], images_per_round(cell)
    if model not in IMAGE_SECONDS or images is None:
        return Guess(None, measured=False)
    keys = cell.run_config
    tested = TEST_IMAGES[keys["dataset"]] / keys["evaluate-every"]
    processor = rounds * (images + tested * EVALUATION_SHARE) * IMAGE_SECONDS[model]
    return Guess(START_SECONDS + processor / workers, measured=False)


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


def _kind(cell: Cell) -> Kind:
    return tuple(cell.run_config[key] for key in ALIKE)
