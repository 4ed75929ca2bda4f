"""What a source has read, before anyone trusts it."""

from __future__ import annotations

import lzma
import pickle
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DAMAGE",
    "Decoded",
    "Source",
    "checked",
    "checked_images",
    "checked_labels",
    "numbered_classes",
    "reading",
]

# What the readers of the formats raise at a file that is cut off or overwritten.
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    pickle.UnpicklingError,
    struct.error,
    # Of zipfile, at a compression or an encryption that it does not know.
    RuntimeError,
    # Of NumPy, at a header that is a text of Python no more, or of absurd numbers.
    SyntaxError,
    tokenize.TokenError,
    OverflowError,
    MemoryError,
    ValueError,
    KeyError,
)


@dataclass(frozen=True)
class Decoded:
    """The arrays of a data set as they were found."""

    train: NDArray[Any]
    train_labels: NDArray[Any]
    test: NDArray[Any]
    test_labels: NDArray[Any]
    class_names: tuple[str, ...]
    extra_tests: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] = field(
        default_factory=dict
    )
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Where a data set was found, and how to read it.

    Parameters
    ----------
    place : str
        File or folder, for messages.
    cure : str
        What to do if it is damaged.
    read : Callable[[], Decoded]
        Reads everything.
    files : tuple[Path, ...]
        What is read; decides, with size and time, whether the cache is still right.
    identity : str
        What else decides: the order of the classes, or what does not lie in files of
        ours. With neither, the data is not cached.
    """

    place: str
    cure: str
    read: Callable[[], Decoded]
    files: tuple[Path, ...] = ()
    identity: str = ""


@contextmanager
def reading(place: Path | str, cure: str) -> Iterator[None]:
    """Turn what a library says of a damaged file into an error with name and cure."""
    try:
        yield
    except DAMAGE as problem:
        raise ValueError(f"{place} is damaged: {_text(problem)}; {cure}") from problem
    except OSError as problem:
        if problem.filename is not None:  # permissions, say: it names the file itself
            raise
        # gzip and Pillow have no error of their own for bad content; a disk may fail.
        what = "is damaged" if problem.errno is None else "cannot be read"
        raise ValueError(f"{place} {what}: {_text(problem)}; {cure}") from problem


def _text(problem: Exception) -> str:
    if isinstance(problem, MemoryError):
        detail = f" ({problem})" if str(problem) else ""
        return f"it asks for more memory than this machine has{detail}"
    # Their first argument is the encoding, or a number.
    if isinstance(problem, (UnicodeError, OSError)):
        return str(problem)
    # A KeyError's text is in quotes; some errors have none.
    return str(problem.args[0] if problem.args else type(problem).__name__)


def checked(found: Decoded, source: Source) -> Decoded:
    """Return the arrays in one shape and type; raise if they are not a data set.

    Raises
    ------
    ValueError
        With the place, what is wrong, and the cure.
    """
    with reading(source.place, source.cure):
        classes = len(found.class_names)
        train = checked_images(found.train, "training images")
        test = checked_images(found.test, "test images")
        extra = {
            name: (checked_images(images, name), labels)
            for name, (images, labels) in found.extra_tests.items()
        }
        others = {"the test images": test} | {k: x for k, (x, _) in extra.items()}
        for name, images in others.items():
            if images.shape[1:] != train.shape[1:]:
                raise ValueError(
                    f"the training images are {_shape(train)}, {name} {_shape(images)}"
                )
        for name, column in found.columns.items():
            if len(column) != len(train):
                raise ValueError(
                    f"the column {name} has {len(column)} values for {len(train)} "
                    "training images"
                )
        return Decoded(
            train,
            checked_labels(found.train_labels, len(train), classes, "training labels"),
            test,
            checked_labels(found.test_labels, len(test), classes, "test labels"),
            found.class_names,
            {
                name: (images, checked_labels(labels, len(images), classes, name))
                for name, (images, labels) in extra.items()
            },
            found.columns,
        )


def checked_images(images: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Return images as (N, H, W, C); raise unless they are square and of bytes."""
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


def checked_labels(
    labels: NDArray[Any], number: int, classes: int, name: str
) -> NDArray[np.int64]:
    """Return labels as (N,) whole numbers; raise unless each names a class."""
    if labels.shape not in ((number,), (number, 1)):
        raise ValueError(
            f"the {name} have the shape {labels.shape} for {number} images; there must "
            "be one for each"
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


def numbered_classes(
    train_labels: NDArray[Any], test_labels: NDArray[Any]
) -> tuple[str, ...]:
    """Return the numbers up to the largest label, where classes have no names.

    Not more than there are training images: one absurd label would fill the memory.
    """
    largest = max(_largest(train_labels), _largest(test_labels))
    if largest >= train_labels.size:
        raise ValueError(
            f"a label is {largest}, which makes {largest + 1} classes of "
            f"{train_labels.size} training images; number the classes 0, 1, 2, ... or "
            "give them names (.npz: class_names; datasets: ClassLabel)"
        )
    return tuple(str(i) for i in range(largest + 1))


def _largest(labels: NDArray[Any]) -> int:
    if labels.size == 0:
        raise ValueError("it has no labels of training or of test images")
    if labels.dtype.kind not in "iuf" or not np.isfinite(labels.max()):
        raise ValueError(f"labels (type {labels.dtype}) are not whole numbers")
    return int(labels.max())


def _shape(images: NDArray[Any]) -> str:
    return "x".join(map(str, images.shape[1:]))
