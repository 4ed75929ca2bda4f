"""NumPy archives with training and test images and their labels."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.decoded import Decoded, Source, numbered_classes, reading

__all__ = ["find_npz", "read_archive"]

# MedMNIST's names, and those of Keras.
_KEYS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)


def find_npz(path: Path, class_names: tuple[str, ...] | None, cure: str) -> Source:
    """Find a data set in an archive.

    Parameters
    ----------
    path : Path
        The archive.
    class_names : tuple[str, ...], optional
        In the order of the labels, where they are known; otherwise the array
        ``class_names`` of the archive, or the numbers up to the largest label.
    cure : str
        What to do if it is damaged.
    """
    read = partial(_read, path, class_names, cure)
    return Source(str(path), cure, read, files=(path,))


def read_archive(
    path: Path, choices: tuple[tuple[str, ...], ...], cure: str
) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the arrays of the first choice of keys that is there, and all others."""
    with reading(path, cure):
        # `load` would take it for a pickle, and speak of that.
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"it has {path.stat().st_size:,} bytes and is not a complete .npz "
                "archive"
            )
        with np.load(path, allow_pickle=False) as file:
            for keys in choices:
                if set(keys) <= set(file.files):
                    others = [key for key in file.files if key not in keys]
                    return [file[key] for key in keys], {
                        key: file[key] for key in others if _is_of_use(key)
                    }
            expected = " or ".join(", ".join(keys) for keys in choices)
            raise ValueError(f"it has {', '.join(file.files)}, not {expected}")


def _is_of_use(key: str) -> bool:
    return key == "class_names" or key.startswith("train_")


def _read(path: Path, class_names: tuple[str, ...] | None, cure: str) -> Decoded:
    arrays, others = read_archive(path, _KEYS, cure)
    train, train_labels, test, test_labels = arrays
    if class_names is None:
        with reading(path, cure):
            if (names := others.get("class_names")) is None:
                class_names = numbered_classes(train_labels, test_labels)
            elif names.ndim == 1:
                class_names = tuple(str(name) for name in names)
            else:
                raise ValueError(
                    f"its class_names have the shape {names.shape}; it must be (C,), "
                    "one name for each class"
                )
    columns = {
        key.removeprefix("train_"): values
        for key, values in others.items()
        if key.startswith("train_")
        and values.shape == train.shape[:1]
        and values.dtype.kind in "biuU"
    }
    return Decoded(train, train_labels, test, test_labels, class_names, columns=columns)
