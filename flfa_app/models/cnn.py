"""A small convolutional network for images of 8x8 to 32x32 pixels."""

import torch
from torch import nn

from flfa_app.models import norm_layer

# Narrow enough for a training step of about 2 ms on one CPU core (16 images, 8x8).
WIDTHS = (16, 32, 64)
# Smaller maps are not pooled: most inputs of the next 3x3 convolution would be padding.
MIN_POOLED_SIZE = 4


class SmallCNN(nn.Module):
    """Three normalised 3x3 convolutions, a global average pool and a linear head.

    The size of the images determines how often the maps are pooled.
    """

    def __init__(self, channels: int, size: int, classes: int, norm: str) -> None:
        super().__init__()
        make_norm = norm_layer(norm)
        width1, width2, width3 = WIDTHS
        # The convolutions have no bias, because the norms have a shift.
        self.conv1 = nn.Conv2d(channels, width1, 3, padding=1, bias=False)
        self.norm1 = make_norm(width1)
        self.pool1, size = _halve_if_large(size)
        self.conv2 = nn.Conv2d(width1, width2, 3, padding=1, bias=False)
        self.norm2 = make_norm(width2)
        self.pool2, size = _halve_if_large(size)
        self.conv3 = nn.Conv2d(width2, width3, 3, padding=1, bias=False)
        self.norm3 = make_norm(width3)
        self.relu = nn.ReLU(inplace=True)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width3, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, of shape (batch, classes), of a batch of images."""
        maps = self.pool1(self.relu(self.norm1(self.conv1(images))))
        maps = self.pool2(self.relu(self.norm2(self.conv2(maps))))
        maps = self.relu(self.norm3(self.conv3(maps)))
        logits: torch.Tensor = self.head(self.average(maps).flatten(1))
        return logits


def _halve_if_large(size: int) -> tuple[nn.Module, int]:
    """Return the pooling layer for maps of a size, and the size of its output."""
    if size >= MIN_POOLED_SIZE:
        return nn.MaxPool2d(2), size // 2
    return nn.Identity(), size


cnn = SmallCNN  # the builder


def block_of_layer(layer: str) -> str:
    """Return the block of a layer: every layer is one."""
    return layer
