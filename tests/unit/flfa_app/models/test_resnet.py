from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from clients import eligible_layers
from flfa_app.models import block_of, build_model


def build(name: str) -> nn.Module:
    return build_model(name, channels=3, size=32, classes=10, norm="group", seed=0)


@pytest.mark.parametrize(
    ("name", "sizes"), [("resnet18", [4, 5, 5, 5]), ("resnet50", [10, 13, 19, 10])]
)
def test_stem_and_blocks(name: str, sizes: list[int]) -> None:
    """The first stage sees maps as large as the image.

    ResNet-18 has 2 blocks of 2 convolutions a stage, ResNet-50 3, 4, 6 and 3 blocks of
    3; a stage that changes the shape (in ResNet-18 all but the first) has one more.
    """
    model = build(name).eval()
    maps: list[torch.Tensor] = []
    model.get_submodule("layer1").register_forward_pre_hook(
        lambda _module, inputs: maps.append(inputs[0])
    )
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    assert maps[0].shape == (1, 64, 32, 32)
    blocks = Counter(block_of(name, layer) for layer in eligible_layers(model))
    stages = [f"stage {i}" for i in range(1, 5)]
    assert list(blocks) == ["stem", *stages, "classifier"]
    assert list(blocks.values()) == [1, *sizes, 1]


def test_resnet18_parameter_count() -> None:
    """The CIFAR ResNet-18 has 11,173,962 parameters.

    Convolutions (no biases), then norms (a scale and a shift per channel):

    - stem: 9*3*64 + 2*64 = 1,856
    - stage 1: 4 * 9*64*64 + 4 * 2*64 = 147,968
    - stage 2: 9*64*128 + 3 * 9*128*128 + 64*128 + 5 * 2*128 = 525,568
    - stage 3: 9*128*256 + 3 * 9*256*256 + 128*256 + 5 * 2*256 = 2,099,712
    - stage 4: 9*256*512 + 3 * 9*512*512 + 256*512 + 5 * 2*512 = 8,393,728
    - head: 512*10 + 10 = 5,130
    """
    assert sum(p.numel() for p in build("resnet18").parameters()) == 11_173_962


def test_unknown_layers_are_named() -> None:
    with pytest.raises(ValueError, match=r"resnet18 has no layer 'classifier\.1'"):
        block_of("resnet18", "classifier.1")
