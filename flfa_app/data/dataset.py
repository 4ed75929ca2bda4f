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

from flfa_app.data.declaration import RawDataset

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

# Images converted at a time, which limits the size of temporary arrays.
CHUNK = 1024

# Keys of a message's config, in the order of the fields of `DataDescription`.
_CONFIG_KEYS = ("pixel-mean", "pixel-std", "image-size", "class-names")


@dataclass(frozen=True)
class DataDescription:
    """Properties of the run's data set that the server sends to every node.

    Mean and standard deviation of each channel of the training images are in units of
    a pixel's value, ``size`` is width and height of an image, and ``class_names`` are
    in the order of the labels.
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
        values = list(self.mean), list(self.deviation), self.size, [*self.class_names]
        return dict(zip(_CONFIG_KEYS, values, strict=True))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DataDescription:
        """Read the entries of a message's config; a missing one is a ValueError."""
        if missing := [key for key in _CONFIG_KEYS if key not in config]:
            raise ValueError(
                f"the message has no {', '.join(missing)} in its config; server and "
                "nodes must run the same version of this app"
            )
        mean, deviation, size, names = (config[key] for key in _CONFIG_KEYS)
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
class ImageDataset(RawDataset):
    """A validated data set, with mean and deviation as in `DataDescription`.

    Images are `Pixels` of shape (N, H, W, C), which are memory-mapped and read-only if
    they come from the cache; labels are `Labels`.
    """

    mean: tuple[float, ...] = field(kw_only=True)
    deviation: tuple[float, ...] = field(kw_only=True)

    @cached_property
    def description(self) -> DataDescription:
        """Properties that the nodes need."""
        size = int(self.train.shape[1])
        return DataDescription(self.mean, self.deviation, size, self.class_names)

    def tensor(self, images: Pixels) -> Tensor:
        """Return normalised images; see :meth:`DataDescription.tensor`."""
        return self.description.tensor(images)


def channel_statistics(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
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
