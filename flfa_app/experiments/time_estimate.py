"""Estimates how long a cell takes, from finished cells or from a rough calculation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from flfa_app.data.sources import DATASETS
from flfa_app.experiments.store import Cell, GridResults

# Everything beside the rounds, with two cells at a time on two cores: the cells of
# quick.toml took 17.7 s each, 4.2 s of it in rounds (2026-11-17, a busy machine).
START_SECONDS = 14.0
# Forward, backward and update for one image of up to 32x32 pixels on one core;
# docs/reproducing.md says how it was measured. Other machines are faster or slower.
IMAGE_SECONDS = {"cnn": 0.0003, "mobilenet_v2": 0.0053, "resnet50": 0.081}
# An evaluation is a forward pass; the backward pass costs about two of them.
EVALUATION_SHARE = 1 / 3
# Rounds of cells with the same values of these keys take about the same time.
WORKLOAD_KEYS = ["dataset", "model", "algorithm", "local-epochs"]
WORKLOAD_KEYS += ["fraction-train", "train-fraction"]

Workload = tuple[Any, ...]  # the values of WORKLOAD_KEYS


def workload(cell: Cell) -> Workload:
    """Return what the time of a cell's rounds depends on."""
    return tuple(cell.run_config[key] for key in WORKLOAD_KEYS)


def measure_rounds(
    results: GridResults, finished: Iterable[Cell]
) -> dict[Workload, float]:
    """Return the mean seconds of a round for each workload of the finished cells."""
    seconds: dict[Workload, list[float]] = {}
    for cell in finished:
        summary = results.summary(cell) or {}
        if summary.get("seconds") and summary.get("rounds"):
            round_seconds = summary["seconds"] / summary["rounds"]
            seconds.setdefault(workload(cell), []).append(round_seconds)
    return {key: statistics.fmean(each) for key, each in seconds.items()}


def estimate_cell(
    cell: Cell, workers: int, measured: Mapping[Workload, float]
) -> float | None:
    """Return the seconds that a cell may take; None if they are unknown.

    Rounds of the same workload are as long as in finished cells. Without any, the
    estimate is the expected number of images trained and evaluated on, times the
    seconds of one. The server evaluates during the next round's training, but on the
    same cores.
    """
    keys = cell.run_config
    rounds = keys["num-server-rounds"]
    if workload(cell) in measured:
        return float(measured[workload(cell)] * rounds)
    dataset, image_seconds = DATASETS[keys["dataset"]], IMAGE_SECONDS.get(keys["model"])
    if not (image_seconds and dataset.train_images and dataset.test_images):
        return None
    participants = max(keys["min-train-nodes"], keys["fraction-train"] * cell.nodes)
    share = min(1.0, participants / cell.nodes) * keys["train-fraction"]
    trained = dataset.train_images * share * keys["local-epochs"]
    evaluated = dataset.test_images / keys["evaluate-every"]
    images = rounds * (trained + evaluated * EVALUATION_SHARE)
    return float(START_SECONDS + images * image_seconds / workers)
