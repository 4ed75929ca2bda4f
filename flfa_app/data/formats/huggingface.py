"""Data sets of Hugging Face's ``datasets``: saved in a folder, or from the Hub."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL.Image import DecompressionBombWarning
from PIL.Image import Image as PillowImage

from flfa_app.data.declaration import DatasetReader, RawDataset
from flfa_app.data.formats.image_folder import (
    refuse_huge_image,
    same_channels,
    stack_images,
)
from flfa_app.data.validation import (
    number_classes,
    refuse_unknown_classes,
    remap_labels,
    report_damage,
)

_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img"), ("label", "fine_label")
_TEST_SPLITS = ("test", "validation", "valid", "val")
# Types of columns that can be the owner in a natural partition.
_OWNER_TYPES = (
    *("string", "large_string", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
# Errors of ``datasets`` and of this module for files with another structure.
_STRUCTURE_ERRORS = (AttributeError, KeyError, TypeError, FileNotFoundError)


class Split(NamedTuple):
    """Arrays of one split; ``columns`` can be the owner in a natural partition."""

    images: NDArray[np.uint8]
    labels: NDArray[Any]
    class_names: tuple[str, ...] | None
    columns: dict[str, NDArray[Any]]


def is_saved_dataset(folder: Path) -> bool:
    """Return whether ``save_to_disk`` has written a folder."""
    return any((folder / x).is_file() for x in ("dataset_dict.json", "state.json"))


def find_saved_dataset(
    folder: Path, class_names: tuple[str, ...] | None, cure: str
) -> DatasetReader:
    """Return the reader of a folder that ``save_to_disk`` has written."""
    files = [path for path in folder.rglob("*") if path.suffix in (".arrow", ".json")]

    def read() -> RawDataset:
        splits = load_saved_dataset(folder, cure)
        with report_damage(folder, cure):
            if not isinstance(splits, Mapping):
                raise ValueError("it is a single split; train and test are needed")
            return decode_splits(splits, class_names)

    return DatasetReader(str(folder), cure, read, files=tuple(files))


def load_saved_dataset(folder: Path, cure: str) -> Any:
    """Return the ``Dataset`` or ``DatasetDict`` of a folder."""
    from datasets import load_from_disk
    from pyarrow import ArrowException

    with report_damage(folder, cure):
        try:
            for state in folder.rglob("state.json"):
                for file in json.loads(state.read_text()).get("_data_files", []):
                    if not (path := state.parent / file["filename"]).is_file():
                        raise ValueError(f"{path} is missing")
            return load_from_disk(str(folder))
        except (ArrowException, *_STRUCTURE_ERRORS) as problem:
            raise ValueError(f"{type(problem).__name__}: {problem}") from problem


def decode_splits(
    splits: Mapping[str, Any], class_names: tuple[str, ...] | None
) -> RawDataset:
    """Decode the training and the test split.

    ``class_names`` is used if the training split has no names. The returned test
    labels follow the class order of the training split.
    """
    tests = [name for name in _TEST_SPLITS if name in splits]
    if "train" not in splits or not tests:
        raise ValueError(
            f"its splits are {', '.join(splits)}; train and test are needed"
        )
    train, test = read_split(splits["train"]), read_split(splits[tests[0]])
    names = train.class_names or class_names
    if names is None:
        names = number_classes(train.labels, test.labels)
    if class_names is not None and len(names) != len(class_names):
        raise ValueError(f"it has {len(names)} classes, not {len(class_names)}")
    test_labels = test.labels
    if train.class_names and test.class_names and train.class_names != test.class_names:
        split_names = "its test split", "its training split"
        refuse_unknown_classes(test.class_names, train.class_names, *split_names)
        test_labels = remap_labels(
            test_labels, test.class_names, train.class_names, "test labels"
        )
    train_images, test_images = same_channels(train.images, test.images)
    return RawDataset(
        train_images, train.labels, test_images, test_labels, names, {}, train.columns
    )


def read_split(split: Any) -> Split:
    """Decode one split; raise ValueError if it has no images or no labels."""
    from pyarrow import ArrowException

    image = _first_column(split, _IMAGE_COLUMNS)
    label = _first_column(split, _LABEL_COLUMNS)
    if len(split) == 0:
        raise ValueError("a split is empty")
    names = getattr(split.features[label], "names", None)
    try:
        labels = np.asarray(split.with_format("numpy")[label][:])
        images = _read_images(split, image)
        columns = {
            name: values
            for name in split.column_names
            if name not in (image, label)
            and getattr(split.features[name], "dtype", "") in _OWNER_TYPES
            # A column with missing values becomes one of objects or floats.
            and (values := np.asarray(list(split[name]))).dtype.kind in "biuU"
        }
    except (ArrowException, TypeError) as problem:
        raise ValueError(f"{type(problem).__name__}: {problem}") from problem
    if labels.dtype.kind not in "iuf":
        raise ValueError(
            f"the column {label} is of type {labels.dtype}; make it a ClassLabel with "
            "datasets' class_encode_column"
        )
    return Split(images, labels, tuple(names) if names else None, columns)


def _first_column(split: Any, names: tuple[str, ...]) -> str:
    for name in names:
        if name in split.column_names:
            return name
    raise ValueError(
        f"its columns are {', '.join(split.column_names)}; one must be called "
        f"{' or '.join(names)}"
    )


def _read_images(split: Any, column: str) -> NDArray[np.uint8]:
    from datasets import Image

    if isinstance(split.features[column], Image):
        with warnings.catch_warnings():
            # Pillow's warning does not name the image; a huge one is an error.
            warnings.simplefilter("ignore", DecompressionBombWarning)
            return stack_images(_decode_images(split[column]))
    images = np.asarray(split.with_format("numpy")[column][:])
    return images[..., None] if images.ndim == 3 else images


def _decode_images(column: Any) -> Iterator[tuple[str, PillowImage]]:
    images = iter(column)
    for i in range(len(column)):
        with refuse_huge_image(f"image {i}"):
            image = next(images)
        if image is None:
            raise ValueError(f"image {i} is null; every row needs an image")
        yield f"image {i}", image
