"""Validation of the arrays of a data set, and error texts for damaged files."""

from __future__ import annotations

import lzma
import pickle
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.declaration import DatasetReader, RawDataset

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
    except (*DAMAGE_ERRORS, OSError) as problem:
        state = "is damaged"
        # gzip and Pillow raise OSError for bad content; a disk may fail as well.
        if isinstance(problem, OSError) and problem.errno is not None:
            if problem.filename is not None:  # e.g. permissions: the text names it
                raise
            state = "cannot be read"
        text = f"{location} {state}: {_error_text(problem)}; {cure}"
        raise ValueError(text) from problem


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
    """Return the arrays in uniform shapes and types; raise ValueError if they are not.

    The error names the location, the problem and the cure.
    """

    def validate(
        images: NDArray[Any], labels: NDArray[Any], images_name: str, labels_name: str
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = validate_images(images, images_name)
        classes = len(dataset.class_names)
        return images, validate_labels(labels, len(images), classes, labels_name)

    with report_damage(reader.location, reader.cure):
        train, train_labels = validate(
            dataset.train, dataset.train_labels, "training images", "training labels"
        )
        test = validate(dataset.test, dataset.test_labels, "test images", "test labels")
        extra = {
            name: validate(*images_and_labels, name, name)
            for name, images_and_labels in dataset.extra_tests.items()
        }
        for name, (images, _) in {"the test images": test, **extra}.items():
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
            train, train_labels, *test, dataset.class_names, extra, dataset.columns
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
    """Return labels, of shape (N,) or (N, 1), as (N,) integers.

    Raise ValueError unless N is the number of images and each label is from 0 to
    ``classes - 1``.
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
    for labels in (train_labels, test_labels):
        if labels.size == 0:
            raise ValueError("it has no training labels or no test labels")
        if labels.dtype.kind not in "iuf" or not np.isfinite(labels.max()):
            raise ValueError(f"labels (type {labels.dtype}) are not whole numbers")
    largest = int(max(train_labels.max(), test_labels.max()))
    if largest >= train_labels.size:
        raise ValueError(
            f"a label is {largest}, which makes {largest + 1} classes for "
            f"{train_labels.size} training images; number the classes 0, 1, 2, ... or "
            "give them names (.npz: class_names; datasets: ClassLabel)"
        )
    return tuple(str(i) for i in range(largest + 1))


def refuse_unknown_classes(
    names: Sequence[str], known_names: Sequence[str], location: str, known_by: str
) -> None:
    """Raise ValueError if a class of a location is not among those known elsewhere."""
    if unknown := [name for name in names if name not in known_names]:
        raise ValueError(
            f"{location} has the class(es) {', '.join(unknown)}; those of {known_by} "
            f"are {', '.join(known_names)}; remove the others or rename them"
        )


def remap_labels(
    labels: NDArray[Any], names: Sequence[str], new_names: Sequence[str], noun: str
) -> NDArray[np.int64]:
    """Return labels that index ``names`` as labels that index ``new_names``.

    The names must be among the new ones; a label without a name is a ValueError.
    """
    # Validated before the lookup, in which -1 (no label) would be the last class.
    valid = validate_labels(labels, labels.size, len(names), noun)
    return np.array([new_names.index(name) for name in names], np.int64)[valid]


def _shape_text(images: NDArray[Any]) -> str:
    return "x".join(map(str, images.shape[1:]))
