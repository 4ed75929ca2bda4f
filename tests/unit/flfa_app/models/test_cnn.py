from __future__ import annotations

import pytest
import torch

from clients import eligible_layers
from flfa_app.models import block_of, build_model


@pytest.mark.parametrize(
    ("size", "map_size"), [(3, 3), (4, 2), (7, 3), (8, 2), (28, 7), (32, 8)]
)
def test_only_maps_of_at_least_four_are_pooled(size: int, map_size: int) -> None:
    """At most two poolings, none of a map smaller than 4x4."""
    model = build_model("cnn", channels=3, size=size, classes=10, norm="batch", seed=0)
    maps: list[torch.Tensor] = []
    model.get_submodule("conv3").register_forward_hook(
        lambda _module, _inputs, output: maps.append(output)
    )
    with torch.no_grad():
        assert model.eval()(torch.zeros(1, 3, size, size)).shape == (1, 10)
    assert maps[0].shape == (1, 64, map_size, map_size)


def test_every_layer_is_a_block() -> None:
    model = build_model("cnn", channels=3, size=32, classes=10, norm="batch", seed=0)
    layers = eligible_layers(model)
    assert [block_of("cnn", layer) for layer in layers] == layers
