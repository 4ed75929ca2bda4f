"""Every key of the training reaches it: another value makes another model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clients import trainer
from flfa_app.methods import ALGORITHMS
from tests.federation import metrics, run_app

# All take part, so that clients have state in the second round.
KEYS = {"fraction-train": 1.0, "num-server-rounds": 2, "pictures": False}

# Of every method: a key and a value that is not the default.
OF_ALL: list[tuple[str, Any]] = [
    ("seed", 1),
    ("learning-rate", 0.03),
    ("lr-decay", 0.5),
    ("momentum", 0.5),
    ("weight-decay", 0.1),
    ("clip-norm", 0.01),
    ("batch-size", 7),
    ("local-epochs", 2),
    ("augmentation", "crop"),
    ("precision", "bf16"),
    ("num-fa-layers", 2),
    ("flfa", "highest"),
    ("feedback", "random"),
    ("feedback", "dfa"),
    ("scaling", "channel"),
    ("scaling", "none"),
]
# Of one method.
OF_ONE: list[tuple[str, str, Any]] = [
    ("fedprox", "fedprox-mu", 0.5),
    ("fedavgm", "fedavgm-form", "heavy-ball"),
    ("fedavgm", "fedavgm-form", "nesterov"),
    ("fedavgm", "fedavgm-momentum", 0.5),
    ("fedavgm", "fedavgm-learning-rate", 0.5),
    ("moon", "moon-mu", 1.0),
    ("moon", "moon-temperature", 0.1),
    ("fedsol", "fedsol-rho", 0.5),
    ("fedsol", "fedsol-variant", "fixed"),
    ("fedsol", "fedsol-part", "head"),
    ("fedrs", "fedrs-alpha", 0.1),
    ("fedrs", "fedrs-variant", "soft"),
    ("fedlc", "fedlc-tau", 0.5),
    ("fedacg", "fedacg-lambda", 0.5),
    ("fedacg", "fedacg-beta", 0.2),
    ("feddyn", "feddyn-alpha", 0.1),
    ("scaffold", "scaffold-learning-rate", 0.5),
]


def model_of(results: Path) -> dict[str, torch.Tensor]:
    return load_file(results / "model.safetensors")


@pytest.fixture(scope="module")
def default_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that trains a method with its default keys, once for all tests."""

    @cache
    def train(algorithm: str) -> dict[str, torch.Tensor]:
        folder = tmp_path_factory.mktemp(algorithm)
        return model_of(run_app(folder, {**KEYS, "algorithm": algorithm}))

    return train


@pytest.mark.parametrize(
    ("algorithm", "key", "value"), [*(("fedavg", *one) for one in OF_ALL), *OF_ONE]
)
def test_another_value_makes_another_model(
    algorithm: str, key: str, value: Any, default_model: Any, tmp_path: Path
) -> None:
    other = model_of(run_app(tmp_path, {**KEYS, "algorithm": algorithm, key: value}))
    default = default_model(algorithm)
    assert other.keys() == default.keys()
    assert any(not torch.equal(other[name], default[name]) for name in other)


def test_no_key_of_a_method_is_forgotten() -> None:
    own = {x.key for method in ALGORITHMS.values() for x in method.options}
    assert own == {key for _, key, _ in OF_ONE}


def test_all_clients_align_with_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random B is the same for all: its seed is the run's, in every round."""
    used: list[tuple[Any, ...]] = []
    align = trainer.feedback_alignment

    def watched(model: Any, layers: Any, **how: Any) -> Any:
        used.append((tuple(layers), *(how[x] for x in ("feedback", "scaling", "seed"))))
        return align(model, layers, **how)

    monkeypatch.setattr(trainer, "feedback_alignment", watched)
    settings = {"feedback": "random", "scaling": "channel", "seed": 7}
    results = run_app(tmp_path, {**KEYS, **settings})
    expected = [
        (tuple(row["selected"]), "random", "channel", 7)
        for row in metrics(results)
        for _ in row["participants"]
    ]
    assert used == expected
