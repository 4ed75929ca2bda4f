"""A data set of BloodMNIST's size that can be learnt in a few rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

__all__ = ["CLASSES", "SIZE", "TRAIN", "write_images"]

TRAIN, TEST = 11_959, 1_000
CLASSES, CHANNELS, SIZE = 8, 3, 28
# Of a pixel's 255 values: how far the classes are apart, and how far two images of one.
CONTRAST, NOISE = 50.0, 20.0
# Pixels: large spots, as a convolution sees them.
BLUR = 8.0


def write_images(file: Path) -> None:
    """Write the data set as an archive that ``dataset = "files"`` takes.

    Each class has a picture of blurred noise; an image is that picture, shifted by a
    few pixels, and noise of its own. It is the same on every machine.
    """
    draw = np.random.default_rng(0)
    rough = draw.normal(size=(CLASSES, SIZE, SIZE, CHANNELS))
    pictures = gaussian_filter(rough, (0, BLUR, BLUR, 0), mode="wrap")
    pictures *= CONTRAST / pictures.std()
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, number in (("train", TRAIN), ("test", TEST)):
        labels = draw.integers(0, CLASSES, number)
        shifts = draw.integers(-3, 4, (number, 2))
        images = np.empty((number, SIZE, SIZE, CHANNELS), np.uint8)
        for i, (label, shift) in enumerate(zip(labels, shifts, strict=True)):
            moved = np.roll(pictures[label], tuple(shift), axis=(0, 1))
            noisy = 128 + moved + draw.normal(scale=NOISE, size=moved.shape)
            images[i] = noisy.clip(0, 255)
        arrays |= {f"{name}_images": images, f"{name}_labels": labels}
    np.savez(file, allow_pickle=False, **arrays)
