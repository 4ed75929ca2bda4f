"""Training data of a node's own: the file or folder of its ``dataset-path``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.cache import cached_dataset
from flfa_app.data.dataset import DataDescription, ImageDataset, Labels, Pixels
from flfa_app.data.formats.huggingface import (
    is_saved_dataset,
    load_saved_dataset,
    read_split,
)
from flfa_app.data.formats.image_folder import class_folders, list_images, read_images
from flfa_app.data.formats.npz import class_names_of, read_npz
from flfa_app.data.validation import (
    refuse_unknown_classes,
    remap_labels,
    report_damage,
    validate_images,
    validate_labels,
)

_KEYS = (("train_images", "train_labels"), ("images", "labels"), ("x_train", "y_train"))
_CURE = "write it again"

_Arrays = tuple[NDArray[Any], NDArray[Any]]


class NodeData(NamedTuple):
    """Training images and labels of one node."""

    images: Pixels
    labels: Labels


@cache
def load_node_data(dataset_path: str, description: DataDescription) -> NodeData:
    """Load a node's own training data: once per process, decoded once per machine.

    The path is an ``.npz`` file with ``train_images`` and ``train_labels`` (or
    ``images`` and ``labels``), a ``load_from_disk`` folder, or a folder with one folder
    per class (or with ``train/``, which has them). Images that do not fit the
    description of the run's data set are a ValueError.
    """
    path = Path(dataset_path).expanduser()
    files, read = _find(path, description)
    decode = partial(_decode, path, read, description)
    # Everything that `_decode` checks: data that fits one run may not fit another.
    cache_key = json.dumps(
        [description.size, description.channels, description.class_names]
    )
    # A real node starts a process per message, so the memory of this one is not enough.
    dataset = cached_dataset("node", description.size, files, cache_key, decode)
    return NodeData(dataset.train, dataset.train_labels)


def _find(
    path: Path, description: DataDescription
) -> tuple[list[Path], Callable[[], _Arrays]]:
    """Return the files, and the function that reads them."""
    if path.suffix == ".npz" and path.is_file():
        return [path], partial(_read, path, description)
    if is_saved_dataset(path):
        files = [file for file in path.rglob("*") if file.is_file()]
        return files, partial(_read, path, description)
    if path.is_dir():
        folder = path / "train" if (path / "train").is_dir() else path
        names = class_folders(folder)
        refuse_unknown_classes(names, description.class_names, str(folder), "the run")
        files, indices = list_images(folder, names, allow_empty_classes=True)
        labels = np.array([description.class_names.index(names[i]) for i in indices])
        return files, lambda: (read_images(files, description.size, _CURE), labels)
    problem = (
        "is not" if path.exists() else "is missing; this node's dataset-path must be"
    )
    raise FileNotFoundError(
        f"{path} {problem} an .npz file, a folder written by datasets' save_to_disk, "
        "or a folder with one folder of images per class"
    )


def _read(path: Path, description: DataDescription) -> _Arrays:
    """Read a file, or a saved data set; return labels in the class order of the run."""
    if path.is_file():
        (images, labels), others = read_npz(path, _KEYS, _CURE)
        with report_damage(path, _CURE):
            names = class_names_of(others)
    else:
        dataset = load_saved_dataset(path, _CURE)
        with report_damage(path, _CURE):
            if isinstance(dataset, Mapping):
                if "train" not in dataset:
                    raise ValueError(f"its splits are {', '.join(dataset)}, not train")
                dataset = dataset["train"]
            images, labels, names, _ = read_split(dataset)
    # Labels without names are in the order of the run.
    if names is None or names == description.class_names or labels.size == 0:
        return images, labels
    refuse_unknown_classes(names, description.class_names, str(path), "the run")
    with report_damage(path, _CURE):
        labels = remap_labels(labels, names, description.class_names, "labels")
    return images, labels


def _decode(
    path: Path, read: Callable[[], _Arrays], description: DataDescription
) -> ImageDataset:
    images, labels = read()
    if images.dtype != np.uint8:
        raise ValueError(
            f"the images in {path} are of type {images.dtype}; they must be uint8, "
            "whole numbers from 0 to 255: save them with astype(numpy.uint8), and "
            "multiply values from 0 to 1 by 255 first"
        )
    with report_damage(path, _CURE):
        images = validate_images(images, "images")
        classes = len(description.class_names)
        labels = validate_labels(labels, len(images), classes, "labels")
    _, size, _, channels = images.shape
    if (size, channels) != (description.size, description.channels):
        colours = {1: "in grey", 3: "in colour (RGB)"}.get(
            description.channels, "with these channels"
        )
        raise ValueError(
            f"{path} does not fit the run: this node's images are {size}x{size} with "
            f"{channels} channel(s), the model is for "
            f"{description.size}x{description.size} with {description.channels}; save "
            f"them {colours} and in this size"
        )
    return ImageDataset(
        images,
        labels,
        images[:0],
        labels[:0],
        description.class_names,
        mean=description.mean,
        deviation=description.deviation,
    )
