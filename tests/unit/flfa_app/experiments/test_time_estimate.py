"""Time estimates; every expected number is computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flfa_app.experiments import time_estimate
from flfa_app.experiments.store import Cell
from flfa_app.experiments.time_estimate import (
    START_SECONDS,
    estimate_cell,
    measure_rounds,
    workload,
)
from tests.federation import default_keys
from tests.results_folder import finish_cell, make_grid


@pytest.fixture(autouse=True)
def _round_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training takes 30 ms for an image, so its forward pass takes 10 ms."""
    monkeypatch.setattr(time_estimate, "IMAGE_SECONDS", {"cnn": 0.03})


def cell(nodes: int = 100, **keys: Any) -> Cell:
    config = default_keys() | {"dataset": "fashionmnist", "fraction-train": 0.1}
    config |= {"num-server-rounds": 20, "local-epochs": 1}
    config |= {key.replace("_", "-"): value for key, value in keys.items()}
    return Cell("x", {}, 0, nodes, config)


@pytest.mark.parametrize(
    ("keys", "workers", "seconds"),
    [
        # A round trains 6,000 images of 0.03 s and evaluates 10,000 of 0.01 s: 280 s.
        ({}, 1, 20 * 280),
        ({}, 2, 20 * 140),
        ({"local_epochs": 5}, 1, 20 * (5 * 180 + 100)),
        ({"train_fraction": 0.5}, 1, 20 * (90 + 100)),
        # An evaluation every fourth round.
        ({"evaluate_every": 4}, 1, 20 * (180 + 25)),
        # A tenth of 1,438 images, and 359 test images.
        ({"dataset": "digits"}, 1, 20 * (143.8 * 0.03 + 3.59)),
    ],
)
def test_training_and_evaluation(
    keys: dict[str, Any], workers: int, seconds: float
) -> None:
    estimate = estimate_cell(cell(**keys), workers, {})
    assert estimate == pytest.approx(START_SECONDS + seconds)


@pytest.mark.parametrize("keys", [{"dataset": "files"}, {"model": "resnet18"}])
def test_unknown_data_sets_and_models(keys: dict[str, Any]) -> None:
    assert estimate_cell(cell(**keys), 1, {}) is None


def test_finished_cells_replace_the_calculation(tmp_path: Path) -> None:
    """Rounds of 2 s and 4 s have a mean of 3 s; MOON has another workload."""
    results = make_grid(tmp_path, seeds=(0, 1))
    fedavg = [c for c in results.cells if c.axes["method"] == "fedavg"][:2]
    for one, seconds in zip(fedavg, (200.0, 400.0), strict=True):
        file = finish_cell(results, one) / "summary.json"
        file.write_text(f'{{"seconds": {seconds}, "rounds": 100}}')
    measured = measure_rounds(results, fedavg)
    assert measured == {workload(fedavg[0]): 3.0}
    rounds = fedavg[0].run_config["num-server-rounds"]
    assert estimate_cell(fedavg[0], 1, measured) == 3.0 * rounds
    moon = next(c for c in results.cells if c.axes["method"] == "moon")
    assert workload(moon) not in measured
