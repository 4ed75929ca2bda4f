"""CIFAR-10.1: two further test sets for models trained on CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.validation import report_damage, validate_images, validate_labels

_URL = "https://github.com/modestyachts/CIFAR-10.1"
_CURE = f"delete it and download it again from {_URL}"
_CLASSES, _IMAGE_SHAPE = 10, (32, 32, 3)


def find_cifar10_1(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the image file and the label file of each version in a folder."""
    versions = {}
    for version in ("v4", "v6"):
        images, labels = (
            root / f"cifar10.1_{version}_{content}.npy"
            for content in ("data", "labels")
        )
        if images.is_file() and labels.is_file():
            versions[f"cifar10.1-{version}"] = images, labels
        elif images.is_file() or labels.is_file():
            present, absent = (images, labels) if images.is_file() else (labels, images)
            raise FileNotFoundError(
                f"{present} exists, but {absent.name} is missing; download it from "
                f"{_URL}"
            )
    return versions


def read_cifar10_1(
    files: dict[str, tuple[Path, Path]],
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Read images and labels of each version."""
    test_sets = {}
    for name, (image_file, label_file) in files.items():
        pixels, numbers = _read_array(image_file), _read_array(label_file)
        with report_damage(image_file, _CURE):
            images = validate_images(pixels, "images")
            if images.shape[1:] != _IMAGE_SHAPE:
                raise ValueError(
                    f"the images have the shape {images.shape}; those of CIFAR-10.1 "
                    "have (N, 32, 32, 3)"
                )
        with report_damage(label_file, _CURE):
            labels = validate_labels(numbers, len(images), _CLASSES, "labels")
        test_sets[name] = images, labels
    return test_sets


def _read_array(path: Path) -> NDArray[Any]:
    with report_damage(path, _CURE):
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive, not one array")
        return array
