"""The models as torch and torchvision have them.

They have the layers of our app's models under the same names, and import nothing of it:
a test compares the two.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import MobileNetV2

__all__ = ["build_model"]

NORMS: dict[str, Any] = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 2)}
# Expansion, channels, blocks, stride: torchvision's, for images of 32x32 pixels.
SMALL_IMAGES = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 1],
    [6, 320, 1, 1],
]


class Net(nn.Module):
    """A small convolutional network for images of 28x28 pixels."""

    def __init__(self, classes: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm1 = NORMS[norm](16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = NORMS[norm](32)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm3 = NORMS[norm](64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch."""
        maps = self.pool(self.relu(self.norm1(self.conv1(images))))
        maps = self.pool(self.relu(self.norm2(self.conv2(maps))))
        maps = self.relu(self.norm3(self.conv3(maps)))
        logits: Tensor = self.head(torch.flatten(self.average(maps), 1))
        return logits


def build_model(name: str, classes: int, norm: str) -> nn.Module:
    """Build a model with the weights torch and torchvision begin with."""
    if name == "cnn":
        return Net(classes, norm)
    if name not in ("mobilenet_v2", "mobilenet_v2_imagenet"):
        raise ValueError(
            f"model is {name!r}; it must be cnn, mobilenet_v2 or mobilenet_v2_imagenet"
        )
    small = name == "mobilenet_v2"
    model: nn.Module = MobileNetV2(
        classes,
        inverted_residual_setting=SMALL_IMAGES if small else None,
        norm_layer=NORMS[norm],
    )
    if small:
        model.get_submodule("features.0.0").stride = (1, 1)  # type: ignore[assignment]
    return model
