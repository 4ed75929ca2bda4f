"""CIFAR-10.1: two new test sets for models of CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.validation import checked_images, checked_labels, reading

__all__ = ["find_cifar10_1", "read_cifar10_1"]

_PLACE = "https://github.com/modestyachts/CIFAR-10.1"
_CURE = f"delete it and download it again from {_PLACE}"
_CLASSES, _SHAPE = 10, (32, 32, 3)


def find_cifar10_1(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the files of images and labels of each version that is in a folder."""
    found = {}
    for version in ("v4", "v6"):
        images, labels = (
            root / f"cifar10.1_{version}_{kind}.npy" for kind in ("data", "labels")
        )
        there = [path.is_file() for path in (images, labels)]
        if all(there):
            found[f"cifar10.1-{version}"] = images, labels
        elif any(there):
            one, other = (images, labels) if there[0] else (labels, images)
            raise FileNotFoundError(
                f"{one} is there, but not {other.name}; download it from {_PLACE}"
            )
    return found


def read_cifar10_1(
    files: dict[str, tuple[Path, Path]],
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Read images and labels of each version."""
    found = {}
    for name, (data, labels) in files.items():
        pixels, numbers = _array(data), _array(labels)
        with reading(data, _CURE):
            images = checked_images(pixels, "images")
            if images.shape[1:] != _SHAPE:
                raise ValueError(
                    f"the images have the shape {images.shape}; those of CIFAR-10.1 "
                    "are (N, 32, 32, 3)"
                )
        with reading(labels, _CURE):
            checked = checked_labels(numbers, len(images), _CLASSES, "labels")
        found[name] = images, checked
    return found


def _array(path: Path) -> NDArray[Any]:
    with reading(path, _CURE):
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            raise ValueError("it is an archive, not one array")
        return loaded
