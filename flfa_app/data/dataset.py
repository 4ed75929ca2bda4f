"""A data set in memory, and how its pixels become the input of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Description", "Images", "Pixels", "channel_statistics"]

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

# Images a piece of work, so that what is needed in between stays small.
CHUNK = 1024

# Keys of a message's config.
MEAN, DEVIATION = "pixel-mean", "pixel-std"
SIZE, CLASSES = "image-size", "class-names"


@dataclass(frozen=True)
class Description:
    """What every node has to know of the data, the same on all of them.

    Parameters
    ----------
    mean, deviation : tuple[float, ...]
        Of each channel of the training images, in units of a pixel's value.
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
        """Channels of an image."""
        return len(self.mean)

    def to_config(self) -> dict[str, Any]:
        """Return what a message carries of it."""
        return {
            MEAN: list(self.mean),
            DEVIATION: list(self.deviation),
            SIZE: self.size,
            CLASSES: list(self.class_names),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Description:
        """Read it from a message's config.

        Raises
        ------
        ValueError
            If the server has not sent it.
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
        """Return images as a model takes them: normalised, float32, (N, C, H, W).

        The strides are those of channels-last, the layout of the pixels.
        """
        # A value of each pixel and channel is all there is: exact, and the fastest.
        values = np.arange(256, dtype=np.float64)[:, None]
        table = ((values - self.mean) / self.deviation).astype(np.float32)
        result = np.empty(images.shape, np.float32)
        for start in range(0, len(images), CHUNK):
            part = slice(start, start + CHUNK)
            for channel in range(self.channels):
                column = np.ascontiguousarray(table[:, channel])
                result[part, ..., channel] = column[images[part, ..., channel]]
        return torch.from_numpy(result).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Images:
    """A data set: pixels as they are, labels, names of the classes.

    Parameters
    ----------
    train, test : NDArray[np.uint8]
        Of shape (N, H, W, C); memory-mapped and read-only where they come from the
        cache.
    train_labels, test_labels : NDArray[np.int64]
        From 0.
    class_names : tuple[str, ...]
        In the order of the labels.
    mean, deviation : tuple[float, ...]
        Of each channel of the training images, in units of a pixel's value.
    extra_tests : Mapping[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]
        Further test sets, by name.
    columns : Mapping[str, NDArray[Any]]
        What else is known of each training image: the writer, say.
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
        """Channels of an image."""
        return int(self.train.shape[-1])

    @property
    def size(self) -> int:
        """Width and height of an image."""
        return int(self.train.shape[1])

    @cached_property
    def description(self) -> Description:
        """What the nodes have to know of it."""
        return Description(self.mean, self.deviation, self.size, self.class_names)

    def tensor(self, images: Pixels) -> Tensor:
        """Return images of this data set as a model takes them; see `Description`."""
        return self.description.tensor(images)


def channel_statistics(
    images: Pixels,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, in units of a pixel's value.

    They are exact, from how often each value occurs. A channel that is the same
    everywhere has the deviation 1, so that it can be divided by.
    """
    counts = np.zeros((images.shape[-1], 256), np.int64)
    for start in range(0, len(images), CHUNK):
        for channel, count in enumerate(counts):
            part = images[start : start + CHUNK, ..., channel]
            count += np.bincount(part.ravel(), minlength=256)
    total = counts.sum(axis=1)
    values = np.arange(256)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    deviation = np.where(variance > 0, np.sqrt(variance), 1.0)
    return tuple(mean.tolist()), tuple(deviation.tolist())
