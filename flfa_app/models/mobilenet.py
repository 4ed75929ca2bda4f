"""MobileNetV2 for small images, and with its original ImageNet strides.

Both end in a global average pool, so they take images of any size. The builders ignore
``size``. They import torchvision themselves: `block_of_layer` does not need it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from flfa_app.models.norms import norm_layer

if TYPE_CHECKING:
    from torchvision.models import MobileNetV2

__all__ = ["CIFAR_STAGES", "block_of_layer", "mobilenet_v2", "mobilenet_v2_imagenet"]

# One row per stage: expansion, output channels, blocks, stride of the first block.
# With a stem of stride 1 the last map is 8 times smaller than the image.
CIFAR_STAGES = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 1],
    [6, 320, 1, 1],
]


def mobilenet_v2(*, channels: int, size: int, classes: int, norm: str) -> MobileNetV2:
    """Build a MobileNetV2 of total stride 8, for images of about 32x32.

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
    MobileNetV2
        The network, freshly initialised.
    """
    from torchvision.models import MobileNetV2

    model = MobileNetV2(
        classes, inverted_residual_setting=CIFAR_STAGES, norm_layer=norm_layer(norm)
    )
    _fit_channels(model, channels)
    # torchvision fixes the stem's stride at 2; the weights do not depend on it.
    model.features[0][0].stride = (1, 1)
    return model


def mobilenet_v2_imagenet(
    *, channels: int, size: int, classes: int, norm: str
) -> MobileNetV2:
    """Build a MobileNetV2 with its original strides, 32 in total.

    The parameters are those of `mobilenet_v2`.
    """
    from torchvision.models import MobileNetV2

    model = MobileNetV2(classes, norm_layer=norm_layer(norm))
    _fit_channels(model, channels)
    return model


def _fit_channels(model: MobileNetV2, channels: int) -> None:
    """Replace the first convolution if the images have another number of channels."""
    from torch import nn

    stem = model.features[0]
    conv = stem[0]
    if conv.in_channels == channels:
        return
    stem[0] = nn.Conv2d(
        channels,
        conv.out_channels,
        conv.kernel_size,
        stride=conv.stride,
        padding=conv.padding,
        bias=False,
    )
    # As torchvision initialises every convolution of this network.
    nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")


def block_of_layer(layer: str) -> str | None:
    """Return stem, stage 1 to 7, head or classifier; None for an unknown layer.

    Both variants have the numbers of blocks of `CIFAR_STAGES`.
    """
    if layer == "classifier.1":
        return "classifier"
    match = re.match(r"features\.(\d+)\.", layer)
    if match is None:
        return None
    index = int(match[1])
    stage_ends = list(accumulate(blocks for _, _, blocks, _ in CIFAR_STAGES))
    if index == 0:
        return "stem"
    if index <= stage_ends[-1]:
        return f"stage {bisect_left(stage_ends, index) + 1}"
    return "head" if index == stage_ends[-1] + 1 else None
