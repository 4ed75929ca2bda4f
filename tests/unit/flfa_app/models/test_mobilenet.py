from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from clients import eligible_layers
from flfa_app.models import block_of, build_model
from flfa_app.models.mobilenet import CIFAR_STAGES

both = pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v2_imagenet"])


def build(name: str, channels: int = 3) -> nn.Module:
    return build_model(
        name, channels=channels, size=32, classes=10, norm="group", seed=0
    )


@pytest.mark.parametrize(
    ("name", "map_size"), [("mobilenet_v2", 4), ("mobilenet_v2_imagenet", 1)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_stride(name: str, map_size: int, channels: int) -> None:
    """The strides multiply to 8 in the CIFAR variant and to 32 in the original."""
    features = build(name, channels).eval().get_submodule("features")
    with torch.no_grad():
        maps = features(torch.zeros(1, channels, 32, 32))
    assert maps.shape == (1, 1280, map_size, map_size)


@both
def test_blocks_are_those_of_the_papers_table(name: str) -> None:
    """Each inverted residual block has 3 convolutions, those of stage 1 only 2.

    So stage s with n blocks has 3n: 2, 6, 9, 12, 9, 9, 3. With stem, head and
    classifier that is 53 layers.
    """
    blocks = Counter(block_of(name, layer) for layer in eligible_layers(build(name)))
    stages = [f"stage {i}" for i in range(1, 8)]
    assert list(blocks) == ["stem", *stages, "head", "classifier"]
    assert list(blocks.values()) == [1, 2, 6, 9, 12, 9, 9, 3, 1, 1]


@both
def test_every_block_of_a_stage_ends_with_the_stages_channels(name: str) -> None:
    """The projection ``conv.<last>`` of every block of a stage has the same width."""
    model = build(name)
    widths: dict[str, set[int]] = {}
    for layer in eligible_layers(model):
        module = model.get_submodule(layer)
        if layer.count(".") == 3 and layer[-1] in "12":
            assert isinstance(module, nn.Conv2d)
            widths.setdefault(block_of(name, layer), set()).add(module.out_channels)
    expected = {f"stage {i}": {row[1]} for i, row in enumerate(CIFAR_STAGES, 1)}
    assert widths == expected


@pytest.mark.parametrize("layer", ["fc", "features.19.0", "classifier.0"])
def test_unknown_layers_are_named(layer: str) -> None:
    with pytest.raises(ValueError, match=f"mobilenet_v2 has no layer '{layer}'"):
        block_of("mobilenet_v2", layer)
