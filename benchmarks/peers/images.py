"""A data set of BloodMNIST's size that can be learnt in a few rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

__all__ = ["write_images"]

TRAIN, TEST = 11_959, 1_000
CLASSES, CHANNELS, SIZE = 8, 3, 28
# Of a pixel's 255 values: how far the classes are apart; how far two images of one, in
# spots of BLUR pixels; and how far two pixels of a spot. Without the last BatchNorm has
# so little to divide by that a tenth of a MobileNet's first gradient is rounding.
CONTRAST, VARIETY, NOISE = 60.0, 30.0, 60.0
BLUR = 8.0


def write_images(file: Path) -> None:
    """Write the data set as an archive that ``dataset = "files"`` takes.

    Each class is a picture of blurred noise; each image that picture, another one of
    its own, and noise. It is the same on every machine.
    """
    draw = np.random.default_rng(0)
    of_classes = CONTRAST * _blurred_noise(CLASSES, draw)
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, number in (("train", TRAIN), ("test", TEST)):
        labels = draw.integers(0, CLASSES, number)
        values = 128 + of_classes[labels] + VARIETY * _blurred_noise(number, draw)
        values += NOISE * draw.standard_normal(values.shape, np.float32)
        arrays[f"{name}_images"] = values.clip(0, 255).astype(np.uint8)
        arrays[f"{name}_labels"] = labels
    np.savez(file, allow_pickle=False, **arrays)


def _blurred_noise(number: int, draw: np.random.Generator) -> NDArray[np.float32]:
    """Return pictures with spots of a few pixels, of deviation 1."""
    noise = draw.standard_normal((number, SIZE, SIZE, CHANNELS), np.float32)
    blurred = gaussian_filter(noise, (0, BLUR, BLUR, 0), mode="wrap")
    pictures: NDArray[np.float32] = blurred / blurred.std()
    return pictures
