"""Random crops and horizontal flips of a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["AUGMENTATIONS", "PADDING", "augment"]

AUGMENTATIONS = ("none", "crop", "crop-flip")
PADDING = 4


def augment(images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Shift each image by up to four pixels; ``"crop-flip"`` mirrors half of them too.

    Pixels from outside the image are zero, which is the mean of normalised images. Each
    image has its own shift and its own flip.

    Parameters
    ----------
    images : Tensor
        A batch of shape (N, C, H, W), on any device.
    kind : str
        ``"crop"``, ``"crop-flip"``, or ``"none"``, which returns ``images`` itself.
    generator : torch.Generator
        On the CPU, so that every machine draws the same numbers. A batch draws the same
        number of values for ``"crop"`` and ``"crop-flip"``.
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
    # Shift and flip in one look-up: for each pixel of the result, its source pixel.
    padded = functional.pad(images, (PADDING,) * 4).permute(0, 2, 3, 1)
    _, padded_height, padded_width, _ = padded.shape
    first_rows = torch.arange(count)[:, None, None] * padded_height
    sources = (first_rows + rows[:, :, None]) * padded_width + columns[:, None, :]
    pixels = padded.reshape(-1, channels).index_select(
        0, sources.flatten().to(images.device)
    )
    result = pixels.view(count, height, width, channels).permute(0, 3, 1, 2)
    if images.stride(1) == 1:  # the images are channels-last, as the result is
        return result
    return result.clone(memory_format=torch.contiguous_format)
