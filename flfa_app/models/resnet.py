"""ResNets with the stem used for CIFAR: no reduction before the first stage.

They end in a global average pool, so they take images of any size. The builders ignore
``size``. They import torchvision themselves: `block_of_layer` does not need it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flfa_app.models.norms import norm_layer

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet

__all__ = ["block_of_layer", "resnet18", "resnet50"]


def resnet18(*, channels: int, size: int, classes: int, norm: str) -> ResNet:
    """Build a ResNet-18 with the CIFAR stem.

    Parameters
    ----------
    channels : int
        Channels of the input images.
    size : int
        Ignored.
    classes : int
        Number of logits.
    norm : str
        Kind of normalisation layer, one of `flfa_app.models.NORMS`.

    Returns
    -------
    ResNet
        The network, freshly initialised.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [2, 2, 2, 2], classes, norm_layer=norm_layer(norm))
    _use_cifar_stem(model, channels)
    return model


def resnet50(*, channels: int, size: int, classes: int, norm: str) -> ResNet:
    """Build a ResNet-50 with the CIFAR stem.

    The parameters are those of `resnet18`.
    """
    from torchvision.models.resnet import Bottleneck, ResNet

    model = ResNet(Bottleneck, [3, 4, 6, 3], classes, norm_layer=norm_layer(norm))
    _use_cifar_stem(model, channels)
    return model


def _use_cifar_stem(model: ResNet, channels: int) -> None:
    """Replace the 7x7 convolution of stride 2 by a 3x3 one; remove the max pool."""
    from torch import nn

    width = model.conv1.out_channels
    model.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    # As torchvision initialises every convolution of this network.
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def block_of_layer(layer: str) -> str | None:
    """Return stem, stage 1 to 4 or classifier; None for an unknown layer."""
    if match := re.match(r"layer(\d)\.", layer):
        return f"stage {match[1]}"
    return {"conv1": "stem", "fc": "classifier"}.get(layer)
