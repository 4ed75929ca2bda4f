"""MobileNetV2 for small images, and with its original ImageNet strides.

Both end in a global average pool, so they take images of any size. The builders ignore
``size``. They import torchvision themselves: `block_of_layer` does not need it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flfa_app.models import norm_layer

if TYPE_CHECKING:
    from torchvision.models import MobileNetV2

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
    """Build a MobileNetV2 of total stride 8, for images of about 32x32."""
    model = _build(channels, classes, norm, CIFAR_STAGES)
    # torchvision fixes the stem's stride at 2; the weights do not depend on it.
    model.features[0][0].stride = (1, 1)
    return model


def mobilenet_v2_imagenet(
    *, channels: int, size: int, classes: int, norm: str
) -> MobileNetV2:
    """Build a MobileNetV2 with its original strides, 32 in total."""
    return _build(channels, classes, norm, None)


def _build(
    channels: int, classes: int, norm: str, stages: list[list[int]] | None
) -> MobileNetV2:
    from torch import nn
    from torchvision.models import MobileNetV2

    model = MobileNetV2(
        classes, inverted_residual_setting=stages, norm_layer=norm_layer(norm)
    )
    if channels != 3:
        stem = model.features[0]
        stem[0] = nn.Conv2d(
            channels, stem[0].out_channels, 3, stride=2, padding=1, bias=False
        )
        # As torchvision initialises every convolution of this network.
        nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")
    return model


def block_of_layer(layer: str) -> str | None:
    """Return stem, stage 1 to 7, head or classifier; None for an unknown layer.

    Both variants have the numbers of blocks of `CIFAR_STAGES`.
    """
    if layer == "classifier.1":
        return "classifier"
    stages = enumerate((blocks for _, _, blocks, _ in CIFAR_STAGES), 1)
    names = [f"stage {i}" for i, blocks in stages for _ in range(blocks)]
    blocks_by_index = dict(enumerate(["stem", *names, "head"]))
    match = re.match(r"features\.(\d+)\.", layer)
    return blocks_by_index.get(int(match[1])) if match else None
