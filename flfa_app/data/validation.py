"""Validation of the arrays of a data set, and error texts for damaged files."""

from __future__ import annotations

import lzma
import pickle
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.declaration import DatasetReader, RawDataset

__all__ = [
    "DAMAGE_ERRORS",
    "number_classes",
    "report_damage",
    "validate_dataset",
    "validate_images",
    "validate_labels",
]

# Errors that readers of file formats raise for a truncated or overwritten file.
DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    pickle.UnpicklingError,
    struct.error,
    # zipfile: unknown compression or encryption.
    RuntimeError,
    # NumPy: the header is not a Python literal, or has absurd numbers.
    SyntaxError,
    tokenize.TokenError,
    OverflowError,
    MemoryError,
    ValueError,
    KeyError,
)


@contextmanager
def report_damage(location: Path | str, cure: str) -> Iterator[None]:
    """Turn a library's error about a file into ValueError with location and cure."""
    try:
        yield
    except DAMAGE_ERRORS as problem:
        raise ValueError(
            f"{location} is damaged: {_error_text(problem)}; {cure}"
        ) from problem
    except OSError as problem:
        if problem.filename is not None:  # e.g. permissions: the text names the file
            raise
        # gzip and Pillow raise OSError for bad content; a disk may fail as well.
        what = "is damaged" if problem.errno is None else "cannot be read"
        raise ValueError(f"{location} {what}: {_error_text(problem)}; {cure}") from (
            problem
        )


def _error_text(problem: Exception) -> str:
    if isinstance(problem, MemoryError):
        detail = f" ({problem})" if str(problem) else ""
        return f"it asks for more memory than this machine has{detail}"
    # The first argument of these is the encoding, or a number.
    if isinstance(problem, (UnicodeError, OSError)):
        return str(problem)
    # `str` of a KeyError has quotes; some errors have no text.
    return str(problem.args[0] if problem.args else type(problem).__name__)


def validate_dataset(dataset: RawDataset, reader: DatasetReader) -> RawDataset:
    """Return the arrays in uniform shapes and types.

    Raises
    ------
    ValueError
        With the location, the problem and the cure, if they are not a data set.
    """
    with report_damage(reader.location, reader.cure):
        classes = len(dataset.class_names)
        train = validate_images(dataset.train, "training images")
        test = validate_images(dataset.test, "test images")
        extra = {
            name: (validate_images(images, name), labels)
            for name, (images, labels) in dataset.extra_tests.items()
        }
        test_sets = {"the test images": test} | {k: x for k, (x, _) in extra.items()}
        for name, images in test_sets.items():
            if images.shape[1:] != train.shape[1:]:
                raise ValueError(
                    f"the training images are {_shape_text(train)}, {name} "
                    f"{_shape_text(images)}"
                )
        for name, column in dataset.columns.items():
            if len(column) != len(train):
                raise ValueError(
                    f"the column {name} has {len(column)} values for {len(train)} "
                    "training images"
                )
        return RawDataset(
            train,
            validate_labels(
                dataset.train_labels, len(train), classes, "training labels"
            ),
            test,
            validate_labels(dataset.test_labels, len(test), classes, "test labels"),
            dataset.class_names,
            {
                name: (images, validate_labels(labels, len(images), classes, name))
                for name, (images, labels) in extra.items()
            },
            dataset.columns,
        )


def validate_images(images: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Return images as (N, H, W, C); raise ValueError unless square and uint8."""
    if images.dtype != np.uint8:
        raise ValueError(
            f"the {name} are of type {images.dtype}, not uint8 (whole numbers from 0 "
            "to 255)"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[1] != images.shape[2] or images.shape[3] == 0:
        raise ValueError(
            f"the {name} have the shape {images.shape}; it must be (N, H, W) or "
            "(N, H, W, C) with H = W"
        )
    if 0 in images.shape:
        raise ValueError(f"there are no {name}")
    return images


def validate_labels(
    labels: NDArray[Any], images: int, classes: int, name: str
) -> NDArray[np.int64]:
    """Return labels as (N,) integers; raise ValueError unless each is a class.

    Parameters
    ----------
    labels : NDArray[Any]
        Of shape (N,) or (N, 1).
    images : int
        Number of images, N.
    classes : int
        Number of classes; labels are from 0 to one less.
    name : str
        Noun for the error message.
    """
    if labels.shape not in ((images,), (images, 1)):
        raise ValueError(
            f"the {name} have the shape {labels.shape} for {images} images; there must "
            "be one label per image"
        )
    labels = labels.reshape(-1)
    if labels.dtype.kind not in "iuf" or not np.array_equal(labels, np.floor(labels)):
        raise ValueError(f"the {name} (type {labels.dtype}) are not whole numbers")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"the {name} are from {labels.min():g} to {labels.max():g}; with {classes} "
            f"classes they must be from 0 to {classes - 1}"
        )
    return labels.astype(np.int64)


def number_classes(
    train_labels: NDArray[Any], test_labels: NDArray[Any]
) -> tuple[str, ...]:
    """Return the numbers up to the largest label as names of the classes.

    There are at most as many as training images: one absurd label would otherwise fill
    the memory with names.
    """
    largest = max(_largest_label(train_labels), _largest_label(test_labels))
    if largest >= train_labels.size:
        raise ValueError(
            f"a label is {largest}, which makes {largest + 1} classes for "
            f"{train_labels.size} training images; number the classes 0, 1, 2, ... or "
            "give them names (.npz: class_names; datasets: ClassLabel)"
        )
    return tuple(str(i) for i in range(largest + 1))


def _largest_label(labels: NDArray[Any]) -> int:
    if labels.size == 0:
        raise ValueError("it has no training labels or no test labels")
    if labels.dtype.kind not in "iuf" or not np.isfinite(labels.max()):
        raise ValueError(f"labels (type {labels.dtype}) are not whole numbers")
    return int(labels.max())


def _shape_text(images: NDArray[Any]) -> str:
    return "x".join(map(str, images.shape[1:]))
