"""Layers and their blocks, against the models themselves."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from clients import eligible_layers
from flfa_app.models import MODELS, build_model
from flfa_app.models.blocks import MOBILENET_BLOCKS, block_of
from flfa_app.models.mobilenet import CIFAR_STAGES


def layers_of(name: str) -> tuple[nn.Module, list[str]]:
    model = build_model(name, channels=3, size=32, classes=10, norm="group", seed=0)
    return model, eligible_layers(model)


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v2_imagenet"])
def test_mobilenet_has_the_blocks_of_the_papers_table(name: str) -> None:
    """Each inverted residual block has 3 convolutions, those of stage 1 only 2.

    So stage s with n blocks has 3n: 2, 6, 9, 12, 9, 9, 3. With stem, head and
    classifier that is 53 layers.
    """
    _, layers = layers_of(name)
    blocks = Counter(block_of(name, layer) for layer in layers)
    stages = [f"stage {i}" for i in range(1, 8)]
    assert list(blocks) == ["stem", *stages, "head", "classifier"]
    assert list(blocks.values()) == [1, 2, 6, 9, 12, 9, 9, 3, 1, 1]


def test_a_stage_of_mobilenet_is_a_row_of_its_table() -> None:
    assert tuple(row[2] for row in CIFAR_STAGES) == MOBILENET_BLOCKS


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v2_imagenet"])
def test_a_stage_of_mobilenet_ends_with_its_own_number_of_channels(name: str) -> None:
    """The projection ``conv.<last>`` of every block of a stage has the same width."""
    model, layers = layers_of(name)
    widths: dict[str, set[int]] = {}
    for layer in layers:
        module = model.get_submodule(layer)
        if layer.count(".") == 3 and layer[-1] in "12":
            assert isinstance(module, nn.Conv2d)
            widths.setdefault(block_of(name, layer), set()).add(module.out_channels)
    expected = {f"stage {i}": {row[1]} for i, row in enumerate(CIFAR_STAGES, 1)}
    assert widths == expected


@pytest.mark.parametrize(
    ("name", "sizes"), [("resnet18", [4, 5, 5, 5]), ("resnet50", [10, 13, 19, 10])]
)
def test_resnet_has_four_stages(name: str, sizes: list[int]) -> None:
    """ResNet-18: 2 blocks of 2; ResNet-50: 3, 4, 6, 3 blocks of 3.

    One more convolution in a stage that changes the shape (in ResNet-18 all but the
    first).
    """
    _, layers = layers_of(name)
    blocks = Counter(block_of(name, layer) for layer in layers)
    stages = [f"stage {i}" for i in range(1, 5)]
    assert list(blocks) == ["stem", *stages, "classifier"]
    assert list(blocks.values()) == [1, *sizes, 1]


def test_each_layer_of_the_small_cnn_is_a_block() -> None:
    _, layers = layers_of("cnn")
    assert [block_of("cnn", layer) for layer in layers] == layers


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_blocks(name: str) -> None:
    _, layers = layers_of(name)
    assert all(block_of(name, layer) for layer in layers)


@pytest.mark.parametrize(
    ("model", "layer", "message"),
    [
        ("vgg", "features.0", "no blocks are known of the model 'vgg'"),
        ("mobilenet_v2", "fc", "mobilenet_v2 has no layer 'fc'"),
        ("mobilenet_v2", "features.19.0", r"has no layer 'features\.19\.0'"),
        ("resnet18", "classifier.1", r"resnet18 has no layer 'classifier\.1'"),
    ],
)
def test_unknown_names_are_named(model: str, layer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        block_of(model, layer)
