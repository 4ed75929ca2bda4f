"""Data sets of Hugging Face's ``datasets``: saved in a folder, or on the Hub."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL.Image import DecompressionBombWarning
from PIL.Image import Image as PillowImage

from flfa_app.data.class_names import refuse_unknown_classes, renumbered
from flfa_app.data.formats.pictures import not_too_large, pixels_of, same_channels
from flfa_app.data.validation import (
    Decoded,
    Source,
    checked_labels,
    numbered_classes,
    reading,
)

__all__ = ["Split", "decode_splits", "find_saved", "is_saved", "read_split"]

_IMAGES, _LABELS = ("image", "img"), ("label", "fine_label")
_TESTS = ("test", "validation", "valid", "val")


class Split(NamedTuple):
    """The columns of one split."""

    images: NDArray[np.uint8]
    labels: NDArray[Any]
    class_names: tuple[str, ...] | None
    columns: dict[str, NDArray[Any]]


def is_saved(folder: Path) -> bool:
    """Return whether ``save_to_disk`` has written a folder."""
    return any((folder / x).is_file() for x in ("dataset_dict.json", "state.json"))


def find_saved(folder: Path, class_names: tuple[str, ...] | None, cure: str) -> Source:
    """Find a data set in a folder that ``load_from_disk`` reads."""
    files = [path for path in folder.rglob("*") if path.suffix in (".arrow", ".json")]
    read = partial(_read, folder, class_names, cure)
    return Source(str(folder), cure, read, files=tuple(files))


def load_saved(folder: Path, cure: str) -> Any:
    """Return what ``load_from_disk`` makes of a folder."""
    from datasets import load_from_disk
    from pyarrow import ArrowException

    with reading(folder, cure):
        try:
            _check_files(folder)
            return load_from_disk(str(folder))
        except (
            ArrowException,
            AttributeError,
            KeyError,
            TypeError,
            FileNotFoundError,
        ) as problem:
            raise ValueError(f"{type(problem).__name__}: {problem}") from problem


def _check_files(folder: Path) -> None:
    """Raise if a file that the folder's own lists name is not there."""
    for state in folder.rglob("state.json"):
        for file in json.loads(state.read_text()).get("_data_files", []):
            if not (state.parent / file["filename"]).is_file():
                raise ValueError(f"{state.parent / file['filename']} is missing")


def _read(folder: Path, class_names: tuple[str, ...] | None, cure: str) -> Decoded:
    splits = load_saved(folder, cure)
    with reading(folder, cure):
        if not isinstance(splits, Mapping):
            raise ValueError("it is one split; training and test are needed")
        return decode_splits(splits, class_names)


def decode_splits(
    splits: Mapping[str, Any], class_names: tuple[str, ...] | None
) -> Decoded:
    """Decode training and test split.

    ``class_names`` is used where the splits have no names of their own. The labels of
    both count the classes as the training split does.
    """
    tests = [name for name in _TESTS if name in splits]
    if "train" not in splits or not tests:
        raise ValueError(
            f"its splits are {', '.join(splits)}; train and test are needed"
        )
    train, test = read_split(splits["train"]), read_split(splits[tests[0]])
    names = train.class_names or class_names
    if names is None:
        names = numbered_classes(train.labels, test.labels)
    if class_names is not None and len(names) != len(class_names):
        raise ValueError(f"it has {len(names)} classes, not {len(class_names)}")
    images = same_channels(train.images, test.images)
    labels = _labels_like(train, test)
    return Decoded(
        images[0], train.labels, images[1], labels, names, columns=train.columns
    )


def _labels_like(train: Split, test: Split) -> NDArray[Any]:
    """Return the test labels, counted as the training split counts its classes."""
    ours, theirs = train.class_names, test.class_names
    if ours is None or theirs is None or ours == theirs:
        return test.labels
    refuse_unknown_classes(theirs, ours, "its test split", "its training split")
    # Before they are looked up: -1, a missing label, would be the last class.
    labels = checked_labels(test.labels, len(test.images), len(theirs), "test labels")
    return renumbered(labels, theirs, ours)


def read_split(split: Any) -> Split:
    """Decode one split; raise ValueError if it has no images and labels."""
    from pyarrow import ArrowException

    image, label = _column(split, _IMAGES), _column(split, _LABELS)
    if len(split) == 0:
        raise ValueError("a split is empty")
    feature = split.features[label]
    names = getattr(feature, "names", None)
    try:
        labels = np.asarray(split.with_format("numpy")[label][:])
        images = _images(split, image)
        columns = {
            name: values
            for name in split.column_names
            if name not in (image, label)
            # Numbers and texts; more than that is no name of an owner.
            if getattr(split.features[name], "dtype", "")
            in ("string", "large_string", "bool", *_WHOLE)
            for values in [np.asarray(list(split[name]))]
            if values.dtype.kind in "biuU"
        }
    except (ArrowException, TypeError) as problem:
        raise ValueError(f"{type(problem).__name__}: {problem}") from problem
    if labels.dtype.kind not in "iuf":
        raise ValueError(
            f"the column {label} is of type {labels.dtype}; make it a ClassLabel with "
            "datasets' class_encode_column"
        )
    return Split(images, labels, tuple(names) if names else None, columns)


_WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def _column(split: Any, names: tuple[str, ...]) -> str:
    for name in names:
        if name in split.column_names:
            return name
    raise ValueError(
        f"its columns are {', '.join(split.column_names)}; one must be called "
        f"{' or '.join(names)}"
    )


def _pictures(column: Any) -> Iterator[tuple[str, PillowImage]]:
    decoded = iter(column)
    for i in range(len(column)):
        with not_too_large(f"image {i}"):
            picture = next(decoded)
        if picture is None:
            raise ValueError(f"image {i} is null; every row needs a picture")
        yield f"image {i}", picture


def _images(split: Any, column: str) -> NDArray[np.uint8]:
    from datasets import Image

    if isinstance(split.features[column], Image):
        with warnings.catch_warnings():
            # Nor would it say which image; one that is far too large is an error.
            warnings.simplefilter("ignore", DecompressionBombWarning)
            return pixels_of(_pictures(split[column]))
    images = np.asarray(split.with_format("numpy")[column][:])
    return images[..., None] if images.ndim == 3 else images
