"""Random crops and flips of a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["AUGMENTATIONS", "PADDING", "augment"]

AUGMENTATIONS = ("none", "crop", "crop-flip")
PADDING = 4


def augment(images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Return the images moved by up to four pixels, and half of them mirrored.

    What a crop brings in from outside is zero, the images' mean once they are
    normalised. Each image has its own shift and its own coin.

    Parameters
    ----------
    images : Tensor
        A batch of shape (N, C, H, W), on any device.
    kind : str
        ``"crop"``, ``"crop-flip"``, or ``"none"``, which returns the images themselves.
    generator : torch.Generator
        On the CPU, so that every machine draws the same numbers. A batch draws as many
        numbers whatever the kind.
    """
    if kind not in AUGMENTATIONS:
        raise ValueError(f"augmentation {kind!r} is unknown; allowed: {AUGMENTATIONS}")
    if kind == "none":
        return images
    if images.dim() != 4:
        raise ValueError(
            f"augmentation {kind!r} needs images of shape (N, C, H, W), not "
            f"{tuple(images.shape)}"
        )
    count, channels, height, width = images.shape
    draws = torch.rand(3, count, generator=generator)
    down, right = (draws[:2] * (2 * PADDING + 1)).long().unsqueeze(2)
    rows = torch.arange(height) + down
    columns = torch.arange(width).expand(count, width)
    if kind == "crop-flip":
        columns = torch.where(draws[2, :, None] < 0.5, columns.flip(1), columns)
    columns = columns + right
    # Shift and mirror in one look-up: the pixel each place of the result comes from.
    padded = functional.pad(images, (PADDING,) * 4).permute(0, 2, 3, 1)
    _, outer_height, outer_width, _ = padded.shape
    image = torch.arange(count)[:, None, None] * outer_height
    places = (image + rows[:, :, None]) * outer_width + columns[:, None, :]
    pixels = padded.reshape(-1, channels).index_select(
        0, places.flatten().to(images.device)
    )
    result = pixels.view(count, height, width, channels).permute(0, 3, 1, 2)
    if images.stride(1) == 1:  # channels last, as the result is
        return result
    return result.clone(memory_format=torch.contiguous_format)
