"""NumPy archives with training images, test images and their labels."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.declaration import DatasetReader, RawDataset
from flfa_app.data.validation import number_classes, report_damage

# MedMNIST's keys, and those of Keras.
_KEYS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)


def find_npz(
    path: Path, class_names: tuple[str, ...] | None, cure: str
) -> DatasetReader:
    """Return the reader of an archive.

    Without ``class_names`` they are the array ``class_names`` of the archive, or the
    numbers up to the largest label.
    """

    def read() -> RawDataset:
        arrays, others = read_npz(path, _KEYS, cure)
        train, train_labels, test, test_labels = arrays
        with report_damage(path, cure):
            names = class_names or class_names_of(others)
            if names is None:
                names = number_classes(train_labels, test_labels)
        columns = {
            key.removeprefix("train_"): values
            for key, values in others.items()
            if key.startswith("train_")
            and values.shape == train.shape[:1]
            and values.dtype.kind in "biuU"
        }
        return RawDataset(
            train, train_labels, test, test_labels, names, columns=columns
        )

    return DatasetReader(str(path), cure, read, files=(path,))


def read_npz(
    path: Path, alternatives: tuple[tuple[str, ...], ...], cure: str
) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the arrays of the first complete alternative of keys, and others.

    The others are ``class_names`` and those whose keys begin with ``train_``.
    """
    with report_damage(path, cure):
        # `np.load` would take anything else for a pickle and name that in its error.
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"it has {path.stat().st_size:,} bytes and is not a complete .npz "
                "archive"
            )
        with np.load(path, allow_pickle=False) as archive:
            for keys in alternatives:
                if set(keys) <= set(archive.files):
                    arrays = [_read_array(archive, key) for key in keys]
                    others = {
                        key: _read_array(archive, key)
                        for key in archive.files
                        if key not in keys
                        and (key == "class_names" or key.startswith("train_"))
                    }
                    return arrays, others
            expected = " or ".join(", ".join(keys) for keys in alternatives)
            raise ValueError(f"it has {', '.join(archive.files)}, not {expected}")


def _read_array(archive: Any, key: str) -> NDArray[Any]:
    array = archive[key]
    if not isinstance(array, np.ndarray):  # bytes of a member that is no .npy file
        raise ValueError(f"{key} in it is not an array")
    return array


def class_names_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...] | None:
    """Return the class names in an archive, in the order of its labels, if any."""
    if (array := arrays.get("class_names")) is None:
        return None
    if array.ndim != 1:
        raise ValueError(
            f"its class_names have the shape {array.shape}; it must be (C,), one name "
            "per class"
        )
    names = tuple(array.astype(str).tolist())
    # Labels are matched by name: two classes would become one.
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"its class_names have {', '.join(repeated)} more than once")
    return names
