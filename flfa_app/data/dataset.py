"""A data set in memory, and the conversion of its pixels to a model's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["DataDescription", "ImageDataset", "Labels", "Pixels", "channel_statistics"]

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

# Images converted at a time, which limits the size of temporary arrays.
CHUNK = 1024

# Keys of a message's config.
MEAN, DEVIATION = "pixel-mean", "pixel-std"
SIZE, CLASSES = "image-size", "class-names"


@dataclass(frozen=True)
class DataDescription:
    """Properties of the run's data set that the server sends to every node.

    Parameters
    ----------
    mean, deviation : tuple[float, ...]
        Mean and standard deviation of each channel of the training images, in units of
        a pixel's value.
    size : int
        Width and height of an image.
    class_names : tuple[str, ...]
        In the order of the labels.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    size: int
    class_names: tuple[str, ...]

    @property
    def channels(self) -> int:
        """Number of channels of an image."""
        return len(self.mean)

    def to_config(self) -> dict[str, Any]:
        """Return the entries for a message's config."""
        return {
            MEAN: list(self.mean),
            DEVIATION: list(self.deviation),
            SIZE: self.size,
            CLASSES: list(self.class_names),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DataDescription:
        """Read the entries of a message's config.

        Raises
        ------
        ValueError
            If an entry is missing.
        """
        keys = (MEAN, DEVIATION, SIZE, CLASSES)
        if missing := [key for key in keys if key not in config]:
            raise ValueError(
                f"the message has no {', '.join(missing)} in its config; server and "
                "nodes must run the same version of this app"
            )
        mean, deviation, size, names = (config[key] for key in keys)
        return cls(tuple(mean), tuple(deviation), int(size), tuple(names))

    def tensor(self, images: Pixels) -> Tensor:
        """Return normalised images as float32 of shape (N, C, H, W).

        The memory layout is channels-last, as that of the pixels.
        """
        # A table with one entry per pixel value and channel: exact, and the fastest.
        values = np.arange(256, dtype=np.float64)[:, None]
        table = ((values - self.mean) / self.deviation).astype(np.float32)
        result = np.empty(images.shape, np.float32)
        for start in range(0, len(images), CHUNK):
            chunk = slice(start, start + CHUNK)
            for channel in range(self.channels):
                column = np.ascontiguousarray(table[:, channel])
                result[chunk, ..., channel] = column[images[chunk, ..., channel]]
        return torch.from_numpy(result).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Training and test images as pixels, with labels and names of the classes.

    Parameters
    ----------
    train, test : NDArray[np.uint8]
        Of shape (N, H, W, C); memory-mapped and read-only if they come from the cache.
    train_labels, test_labels : NDArray[np.int64]
        Class of each image, from 0.
    class_names : tuple[str, ...]
        In the order of the labels.
    mean, deviation : tuple[float, ...]
        Mean and standard deviation of each channel of the training images, in units of
        a pixel's value.
    extra_tests : Mapping[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]
        Further test sets, by name.
    columns : Mapping[str, NDArray[Any]]
        Further properties of each training image, e.g. the writer, by name.
    """

    train: Pixels
    train_labels: Labels
    test: Pixels
    test_labels: Labels
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    extra_tests: Mapping[str, tuple[Pixels, Labels]] = field(default_factory=dict)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        """Number of channels of an image."""
        return int(self.train.shape[-1])

    @property
    def size(self) -> int:
        """Width and height of an image."""
        return int(self.train.shape[1])

    @cached_property
    def description(self) -> DataDescription:
        """Properties that the nodes need."""
        return DataDescription(self.mean, self.deviation, self.size, self.class_names)

    def tensor(self, images: Pixels) -> Tensor:
        """Return normalised images; see :meth:`DataDescription.tensor`."""
        return self.description.tensor(images)


def channel_statistics(
    images: Pixels,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, in units of a pixel's value.

    They are computed exactly from the histogram of the values. The deviation of a
    constant channel is set to 1, so that one can divide by it.
    """
    counts = np.zeros((images.shape[-1], 256), np.int64)
    for start in range(0, len(images), CHUNK):
        for channel, count in enumerate(counts):
            chunk = images[start : start + CHUNK, ..., channel]
            count += np.bincount(chunk.ravel(), minlength=256)
    total = counts.sum(axis=1)
    values = np.arange(256)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    deviation = np.where(variance > 0, np.sqrt(variance), 1.0)
    return tuple(mean.tolist()), tuple(deviation.tolist())
