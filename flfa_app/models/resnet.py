"""ResNets with the stem used for CIFAR: no reduction before the first stage.

They end in a global average pool, so they take images of any size. The builders ignore
``size``. They import torchvision themselves: `block_of_layer` does not need it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flfa_app.models import norm_layer

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet


def resnet18(*, channels: int, size: int, classes: int, norm: str) -> ResNet:
    """Build a ResNet-18 with the CIFAR stem."""
    return _build("BasicBlock", [2, 2, 2, 2], channels, classes, norm)


def resnet50(*, channels: int, size: int, classes: int, norm: str) -> ResNet:
    """Build a ResNet-50 with the CIFAR stem."""
    return _build("Bottleneck", [3, 4, 6, 3], channels, classes, norm)


def _build(
    block: str, blocks: list[int], channels: int, classes: int, norm: str
) -> ResNet:
    from torch import nn
    from torchvision.models import resnet

    kind = getattr(resnet, block)
    model = resnet.ResNet(kind, blocks, classes, norm_layer=norm_layer(norm))
    # A 3x3 convolution in place of the 7x7 one of stride 2, and no max pool.
    width = model.conv1.out_channels
    model.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    # As torchvision initialises every convolution of this network.
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def block_of_layer(layer: str) -> str | None:
    """Return stem, stage 1 to 4 or classifier; None for an unknown layer."""
    if match := re.match(r"layer(\d)\.", layer):
        return f"stage {match[1]}"
    return {"conv1": "stem", "fc": "classifier"}.get(layer)
