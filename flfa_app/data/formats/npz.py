"""NumPy archives with training and test images and their labels."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.validation import Decoded, Source, numbered_classes, reading

__all__ = ["archive_class_names", "find_npz", "read_archive"]

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
                    return [_member(file, key) for key in keys], {
                        key: _member(file, key) for key in others if _is_of_use(key)
                    }
            expected = " or ".join(", ".join(keys) for keys in choices)
            raise ValueError(f"it has {', '.join(file.files)}, not {expected}")


def _member(file: Any, key: str) -> NDArray[Any]:
    array = file[key]
    if not isinstance(array, np.ndarray):  # `load` gives the bytes of anything else
        raise ValueError(f"{key} in it is not an array")
    return array


def _is_of_use(key: str) -> bool:
    return key == "class_names" or key.startswith("train_")


def archive_class_names(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...] | None:
    """Return the names in an archive, in the order of its labels, if it has them.

    Raises
    ------
    ValueError
        If they are not one name for each class.
    """
    if (names := arrays.get("class_names")) is None:
        return None
    if names.ndim != 1:
        raise ValueError(
            f"its class_names have the shape {names.shape}; it must be (C,), one name "
            "for each class"
        )
    found = tuple(names.astype(str).tolist())
    # Whoever goes by the names would take two classes for one.
    if twice := [name for name, times in Counter(found).items() if times > 1]:
        raise ValueError(f"its class_names have {', '.join(twice)} twice")
    return found


def _read(path: Path, class_names: tuple[str, ...] | None, cure: str) -> Decoded:
    arrays, others = read_archive(path, _KEYS, cure)
    train, train_labels, test, test_labels = arrays
    if class_names is None:
        with reading(path, cure):
            class_names = archive_class_names(others)
            if class_names is None:
                class_names = numbered_classes(train_labels, test_labels)
    columns = {
        key.removeprefix("train_"): values
        for key, values in others.items()
        if key.startswith("train_")
        and values.shape == train.shape[:1]
        and values.dtype.kind in "biuU"
    }
    return Decoded(train, train_labels, test, test_labels, class_names, columns=columns)
