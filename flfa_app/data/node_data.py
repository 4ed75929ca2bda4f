"""The training data of a real node: what its ``dataset-path`` points to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.cache import cached_images
from flfa_app.data.class_names import refuse_unknown_classes, renumbered
from flfa_app.data.dataset import Description, Images, Pixels
from flfa_app.data.formats.folders import classes_in, list_pictures, read_pictures
from flfa_app.data.formats.npz import archive_class_names, read_archive
from flfa_app.data.formats.saved import is_saved, load_saved, read_split
from flfa_app.data.validation import checked_images, checked_labels, reading

__all__ = ["OwnImages", "load_own_images"]

_KEYS = (("train_images", "train_labels"), ("images", "labels"), ("x_train", "y_train"))
_CURE = "write it again"


class OwnImages(NamedTuple):
    """Images and labels of one node."""

    images: Pixels
    labels: NDArray[np.int64]


class _Found(NamedTuple):
    files: tuple[Path, ...]
    read: Callable[[], tuple[NDArray[Any], NDArray[Any]]]


@cache
def load_own_images(dataset_path: str, description: Description) -> OwnImages:
    """Load a node's own training data; once in a process, decoded once on a machine.

    Parameters
    ----------
    dataset_path : str
        An ``.npz`` file with ``train_images`` and ``train_labels`` (or ``images`` and
        ``labels``), a ``load_from_disk`` folder, or a folder with a folder for each
        class (or with ``train/`` in which they are).
    description : Description
        Of the run's data set: what this node's images have to be like.

    Raises
    ------
    ValueError
        If the images do not fit the run's.
    """
    path = Path(dataset_path).expanduser()
    found = _find(path, description)
    decode = partial(_decode, path, found, description)
    # All that `_decode` asks of the images: what fits one run may not fit another.
    identity = json.dumps(
        [description.size, description.channels, description.class_names]
    )
    # Another process serves the next message: it finds the pixels decoded.
    images = cached_images("node", description.size, found.files, identity, decode)
    return OwnImages(images.train, images.train_labels)


def _find(path: Path, description: Description) -> _Found:
    if path.suffix == ".npz" and path.is_file():
        return _Found((path,), partial(_archive, path, description))
    if is_saved(path):
        files = [file for file in path.rglob("*") if file.is_file()]
        return _Found(tuple(files), partial(_saved, path, description))
    if path.is_dir():
        folder = path / "train" if (path / "train").is_dir() else path
        names = classes_in(folder)
        _refuse_unknown(names, description, folder)
        found = list_pictures(folder, names, some_classes=True)
        labels = np.array([description.class_names.index(names[i]) for _, i in found])
        files = [file for file, _ in found]

        def read() -> tuple[NDArray[Any], NDArray[Any]]:
            return read_pictures(files, description.size, _CURE), labels

        return _Found(tuple(files), read)
    what = "is not" if path.exists() else "is missing; this node's dataset-path must be"
    raise FileNotFoundError(
        f"{path} {what} an .npz file, a folder written by datasets' save_to_disk, or a "
        "folder with a folder of pictures for each class"
    )


def _decode(path: Path, found: _Found, description: Description) -> Images:
    images, labels = found.read()
    _refuse_floats(images, path)
    with reading(path, _CURE):
        images = checked_images(images, "images")
        classes = len(description.class_names)
        labels = checked_labels(labels, len(images), classes, "labels")
    _refuse_others(images, description, path)
    return Images(
        images,
        labels,
        images[:0],
        labels[:0],
        description.class_names,
        description.mean,
        description.deviation,
    )


def _refuse_floats(images: NDArray[Any], path: Path) -> None:
    if images.dtype != np.uint8:
        raise ValueError(
            f"the images in {path} are of type {images.dtype}; they must be uint8, "
            "whole numbers from 0 to 255: save them with astype(numpy.uint8), those "
            "from 0 to 1 times 255"
        )


def _refuse_others(images: Pixels, description: Description, path: Path) -> None:
    size, channels = images.shape[1], images.shape[3]
    if (size, channels) != (description.size, description.channels):
        raise ValueError(
            f"{path} does not fit the run: this node's images are {size}x{size} with "
            f"{channels} channel(s), the model is for "
            f"{description.size}x{description.size} with {description.channels}; save "
            f"them {_colours(description.channels)} and in this size"
        )


def _colours(channels: int) -> str:
    return {1: "in grey", 3: "in colour (RGB)"}.get(channels, "with these channels")


def _archive(path: Path, description: Description) -> tuple[NDArray[Any], NDArray[Any]]:
    (images, labels), others = read_archive(path, _KEYS, _CURE)
    with reading(path, _CURE):
        names = archive_class_names(others)
    return images, _labels_of_run(labels, names, description, path)


def _saved(path: Path, description: Description) -> tuple[NDArray[Any], NDArray[Any]]:
    loaded = load_saved(path, _CURE)
    with reading(path, _CURE):
        if isinstance(loaded, Mapping):
            if "train" not in loaded:
                raise ValueError(f"its splits are {', '.join(loaded)}, not train")
            loaded = loaded["train"]
        split = read_split(loaded)
    labels = _labels_of_run(split.labels, split.class_names, description, path)
    return split.images, labels


def _labels_of_run(
    labels: NDArray[Any],
    names: tuple[str, ...] | None,
    description: Description,
    path: Path,
) -> NDArray[Any]:
    """Return labels that count the run's classes; without names they do already."""
    if names is None or names == description.class_names or labels.size == 0:
        return labels
    # The same classes in another order, or some of them only.
    _refuse_unknown(names, description, path)
    with reading(path, _CURE):
        # Before they are looked up: -1, a missing label, would be the last class.
        # Whether there is one for each image is looked at with the images.
        own = checked_labels(labels, labels.size, len(names), "labels")
    return renumbered(own, names, description.class_names)


def _refuse_unknown(
    names: Sequence[str], description: Description, place: Path
) -> None:
    refuse_unknown_classes(names, description.class_names, str(place), "the run")
