"""Slow crops and flips: image by image, pixel by pixel of a padded one."""

import torch
from torch import Tensor

from clients import TrainSettings
from clients.trainer import AUGMENTATION_SEED


def slow_augment(images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Pad each image with four zeros a side, cut it out again, mirror it."""
    count, channels, height, width = images.shape
    draws = torch.rand(3, count, generator=generator).tolist()
    results = []
    for image, first, second, coin in zip(images, *draws, strict=True):
        padded = torch.zeros(channels, height + 8, width + 8, dtype=images.dtype)
        padded[:, 4 : 4 + height, 4 : 4 + width] = image
        top, left = int(first * 9), int(second * 9)
        cut = padded[:, top : top + height, left : left + width].clone()
        if kind == "crop-flip" and coin < 0.5:
            mirrored = [cut[:, :, width - 1 - x] for x in range(width)]
            cut = torch.stack(mirrored, 2)
        results.append(cut)
    return torch.stack(results)


class Redrawn:
    """Samples that are augmented anew whenever a batch is read, as in the trainer."""

    def __init__(self, images: Tensor, settings: TrainSettings) -> None:
        self.images = images
        self.kind = settings.augmentation
        self.crops = torch.Generator().manual_seed(settings.seed ^ AUGMENTATION_SEED)

    def __getitem__(self, batch: Tensor) -> Tensor:
        return slow_augment(self.images[batch], self.kind, self.crops)
