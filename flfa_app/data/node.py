"""The training data of a real node: what its ``dataset-path`` points to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.cache import cached_images
from flfa_app.data.decoded import checked_images, checked_labels, reading
from flfa_app.data.images import Description, Images, Pixels
from flfa_app.data.sources.folders import classes_in, list_pictures, read_pictures
from flfa_app.data.sources.npz import read_archive
from flfa_app.data.sources.saved import is_saved, load_saved, read_split

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
    identity = json.dumps([description.size, description.class_names])
    # Another process serves the next message: it finds the pixels decoded.
    images = cached_images("node", description.size, found.files, identity, decode)
    return OwnImages(images.train, images.train_labels)


def _find(path: Path, description: Description) -> _Found:
    if path.suffix == ".npz" and path.is_file():
        return _Found((path,), partial(_archive, path))
    if is_saved(path):
        files = [file for file in path.rglob("*") if file.is_file()]
        return _Found(tuple(files), partial(_saved, path, description))
    if path.is_dir():
        folder = path / "train" if (path / "train").is_dir() else path
        names = _known_classes(classes_in(folder), description, folder)
        found = list_pictures(folder, names)
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
    with reading(path, _CURE):
        images = checked_images(images, "images")
        size, channels = images.shape[1], images.shape[3]
        if (size, channels) != (description.size, description.channels):
            raise ValueError(
                f"this node's images are {size}x{size} with {channels} channel(s), the "
                f"model is for {description.size}x{description.size} with "
                f"{description.channels}"
            )
        classes = len(description.class_names)
        labels = checked_labels(labels, len(images), classes, "labels")
    return Images(
        images,
        labels,
        images[:0],
        labels[:0],
        description.class_names,
        description.mean,
        description.deviation,
    )


def _archive(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    (images, labels), _ = read_archive(path, _KEYS, _CURE)
    return images, labels


def _saved(path: Path, description: Description) -> tuple[NDArray[Any], NDArray[Any]]:
    loaded = load_saved(path, _CURE)
    with reading(path, _CURE):
        if isinstance(loaded, Mapping):
            if "train" not in loaded:
                raise ValueError(f"its splits are {', '.join(loaded)}, not train")
            loaded = loaded["train"]
        split = read_split(loaded)
        if split.class_names is None or split.class_names == description.class_names:
            return split.images, split.labels
        # The same classes in another order, or some of them only.
        names = _known_classes(list(split.class_names), description, path)
        places = np.array([description.class_names.index(name) for name in names])
        # Before they are looked up: -1, a missing label, would be the last class.
        own = checked_labels(split.labels, len(split.images), len(names), "labels")
        return split.images, places[own]


def _known_classes(
    names: list[str], description: Description, place: Path
) -> list[str]:
    if unknown := [name for name in names if name not in description.class_names]:
        raise ValueError(
            f"{place} has the class(es) {', '.join(unknown)}; those of the run are "
            f"{', '.join(description.class_names)}"
        )
    return names
