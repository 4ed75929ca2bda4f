"""What the server's message says, and that the package needs no Flower."""

import dataclasses
import subprocess
import sys

import pytest

import clients
from clients import TrainSettings, aligned_layers


@pytest.mark.parametrize("layers", [[], ["conv1", "fc"], ("fc",)])
def test_the_layers_of_the_round(layers: list[str]) -> None:
    found = aligned_layers({"fa-layers": layers, "lr": 0.1})
    assert found == tuple(layers)
    assert isinstance(found, tuple)


@pytest.mark.parametrize("config", [{}, {"fa_layers": ["fc"]}, {"lr": 0.1}])
def test_a_message_without_layers_is_not_one_of_flfa(config: dict) -> None:
    with pytest.raises(ValueError, match=r"'fa-layers'.*LayerSelection"):
        aligned_layers(config)


def test_a_single_name_is_not_a_list_of_characters() -> None:
    try:
        found = aligned_layers({"fa-layers": "fc"})
    except ValueError:
        return
    assert found == ("fc",)


def test_settings_do_not_change_once_parsed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainSettings().learning_rate = 1.0  # type: ignore[misc]


def test_the_package_offers_what_it_says() -> None:
    assert all(hasattr(clients, name) for name in clients.__all__)
    assert sorted(clients.__all__) == clients.__all__


def test_the_package_imports_torch_and_nothing_of_flower() -> None:
    code = (
        "import sys, clients; "
        "print({'flwr', 'ray', 'flfa_app', 'strategies'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
