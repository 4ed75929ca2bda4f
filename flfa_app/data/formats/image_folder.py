"""Image folders: ``train/<class>/<image>`` and ``test/<class>/<image>``."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from pathlib import Path

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray
from PIL import Image

from flfa_app.data.declaration import DatasetReader, RawDataset
from flfa_app.data.formats.pillow_images import (
    crop_square,
    refuse_huge_image,
    same_channels,
    stack_images,
)
from flfa_app.data.validation import report_damage

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_CURE = "delete it, or save it again"
# Photographs are large until they are resized, so only some are decoded ahead.
_IMAGES_AHEAD = 256


def find_image_folder(
    root: Path, image_size: int, class_names: Sequence[str] | None = None
) -> DatasetReader:
    """Return the reader of a folder with ``train`` and ``test`` (or ``val``).

    Images are resized to ``image_size`` pixels a side; with 0 they must be square and
    of one size. The class folders are, in the order of the labels, ``class_names``, or
    all sorted.
    """
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if not tests:
        raise FileNotFoundError(
            f"{root} has train/, but neither test/ nor val/; each must have one folder "
            "per class"
        )
    names = tuple(class_names or class_folders(root / "train"))
    train, test = (list_images(folder, names) for folder in (root / "train", tests[0]))

    def read() -> RawDataset:
        train_images, test_images = same_channels(
            *(
                read_images([path for path, _ in split], image_size, _CURE)
                for split in (train, test)
            )
        )
        train_labels, test_labels = (
            np.array([label for _, label in split]) for split in (train, test)
        )
        return RawDataset(train_images, train_labels, test_images, test_labels, names)

    return DatasetReader(
        str(root),
        _CURE,
        read,
        files=tuple(path for path, _ in (*train, *test)),
        # The labels follow the order of the names, which the files do not tell.
        cache_key=json.dumps(names),
    )


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted, without hidden ones."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )


def list_images(
    folder: Path, class_names: Sequence[str], *, allow_empty_classes: bool = False
) -> list[tuple[Path, int]]:
    """Return the image files of the class folders, without hidden ones, with labels.

    A class without an image is a FileNotFoundError; with ``allow_empty_classes``, one
    image of any class is enough.
    """
    suffixes = ", ".join(_SUFFIXES)
    images = []
    for label, name in enumerate(class_names):
        paths = sorted(
            path
            for path in (folder / name).glob("*")
            if path.suffix.lower() in _SUFFIXES
            and not path.name.startswith(".")
            and not path.is_dir()
        )
        if not paths and not allow_empty_classes:
            raise FileNotFoundError(
                f"{folder / name} has no image ({suffixes}); every class needs at "
                "least one"
            )
        images += [(path, label) for path in paths]
    if not images:
        raise FileNotFoundError(
            f"{folder} has no image ({suffixes}) in a folder with the name of its "
            "class; at least one is needed"
        )
    return images


def read_images(paths: Sequence[Path], size: int, cure: str) -> NDArray[np.uint8]:
    """Decode image files; ``size`` 0 leaves them as large as they are."""
    with warnings.catch_warnings():
        # Pillow's warning does not name the file; `_read_image` logs one that does.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # Threads are enough: Pillow releases Python's lock while it decodes.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return stack_images(_decode(pool, paths, size, cure))


def _decode(
    pool: ThreadPoolExecutor, paths: Sequence[Path], size: int, cure: str
) -> Iterator[tuple[str, Image.Image]]:
    for start in range(0, len(paths), _IMAGES_AHEAD):
        chunk = paths[start : start + _IMAGES_AHEAD]
        images = pool.map(lambda path: _read_image(path, size, cure), chunk)
        yield from zip(map(str, chunk), images, strict=True)


def _read_image(path: Path, size: int, cure: str) -> Image.Image:
    with report_damage(path, cure), refuse_huge_image("it"), Image.open(path) as image:
        if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
            width, height = image.size
            log(WARNING, "%s is very large: %dx%d pixels", path, width, height)
        image.load()
    return crop_square(str(path), image, size) if size else image.copy()
