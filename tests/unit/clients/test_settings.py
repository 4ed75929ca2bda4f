"""The settings of a round, and the layers in the server's message."""

import dataclasses
import subprocess
import sys

import pytest

import clients
from clients import TrainSettings, aligned_layers


@pytest.mark.parametrize("layers", [[], ["conv1", "fc"], ("fc",)])
def test_the_layers_of_the_round(layers: list[str]) -> None:
    names = aligned_layers({"fa-layers": layers, "lr": 0.1})
    assert names == tuple(layers)
    assert isinstance(names, tuple)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"'fa-layers'.*LayerSelection"),
        ({"fa_layers": ["fc"]}, r"'fa-layers'.*LayerSelection"),
        ({"fa-layers": "fc"}, "must be a list of names, not 'fc'"),
        ({"fa-layers": [1]}, r"must be a list of names, not \[1\]"),
    ],
)
def test_a_message_without_a_list_of_layers_is_an_error(
    config: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        aligned_layers(config)


def test_the_defaults_are_the_papers() -> None:
    settings = TrainSettings()
    assert (settings.learning_rate, settings.momentum) == (0.01, 0.9)
    assert (settings.weight_decay, settings.clip_norm) == (0.001, 0.0)
    assert (settings.batch_size, settings.epochs) == (64, 5)
    assert settings.fa_layers == ()
    assert (settings.feedback, settings.scaling) == ("global", "tensor")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.learning_rate = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", ["batch_size", "epochs"])
def test_settings_that_train_on_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 1 or more, not 0"):
        TrainSettings(**{name: 0})


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"precision 'bf-16' is unknown; allowed"):
        TrainSettings(precision="bf-16")


# A round as in a client's process, which must be quick to start.
ROUND = """
import sys
import torch
from clients import LocalTrainer, TrainSettings
from torch import nn
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(),
                      nn.Linear(8, 2))
settings = TrainSettings(epochs=2, clip_norm=1.0, weight_decay=0.1, fa_layers=("3",))
LocalTrainer(model, settings).fit(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 0]))
heavy = {"torch._dynamo", "flwr", "ray", "flfa_app", "strategies"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_a_round_imports_neither_torchs_compiler_nor_flower() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROUND], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_exports_its_names() -> None:
    assert all(hasattr(clients, name) for name in clients.__all__)
    assert sorted(clients.__all__) == clients.__all__
