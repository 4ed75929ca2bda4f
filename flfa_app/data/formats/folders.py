"""Image folders: ``train/<class>/<picture>`` and ``test/<class>/<picture>``."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging import WARNING
from pathlib import Path

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray
from PIL import Image

from flfa_app.data.formats.pictures import (
    not_too_large,
    pixels_of,
    same_channels,
    square,
)
from flfa_app.data.validation import Decoded, Source, reading

__all__ = ["classes_in", "find_folders", "list_pictures", "read_pictures"]

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def find_folders(
    root: Path, image_size: int, class_names: Sequence[str] | None = None
) -> Source:
    """Find a data set in an image folder.

    Parameters
    ----------
    root : Path
        With ``train`` and ``test`` (or ``val``) in it.
    image_size : int
        Pictures are brought to it; 0: they must be square and of one size.
    class_names : Sequence[str], optional
        The folders to use, in the order of the labels; by default all, sorted.
    """
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if not tests:
        raise FileNotFoundError(
            f"{root} has train/, but neither test/ nor val/; each must have a folder "
            "for each class"
        )
    names = tuple(class_names or classes_in(root / "train"))
    train, test = (
        list_pictures(folder, names) for folder in (root / "train", tests[0])
    )
    cure = "delete it, or save it again"
    read = partial(_read, train, test, names, image_size, cure)
    files = tuple(path for path, _ in (*train, *test))
    # The order of the names is that of the labels; the files do not tell it.
    return Source(str(root), cure, read, files=files, identity=json.dumps(names))


def classes_in(folder: Path) -> list[str]:
    """Return the names of the classes: those of the folders that are not hidden."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )


def list_pictures(
    folder: Path, names: Sequence[str], *, some_classes: bool = False
) -> list[tuple[Path, int]]:
    """Return the files of the classes that are not hidden, each with its label.

    Parameters
    ----------
    folder : Path
        With a folder for each class.
    names : Sequence[str]
        Of the classes, in the order of the labels.
    some_classes : bool
        Whether one picture of any class is enough.

    Raises
    ------
    FileNotFoundError
        If a class has no folder, or no picture in it.
    """
    found = []
    for label, name in enumerate(names):
        paths = sorted(
            path
            for path in (folder / name).glob("*")
            if path.suffix.lower() in _ENDINGS
            and not path.name.startswith(".")
            and not path.is_dir()
        )
        if not paths and not some_classes:
            raise FileNotFoundError(
                f"{folder / name} has no picture ({', '.join(_ENDINGS)}); every class "
                "needs at least one"
            )
        found += [(path, label) for path in paths]
    if not found:
        raise FileNotFoundError(
            f"{folder} has no picture ({', '.join(_ENDINGS)}) in a folder with the "
            "name of its class; there must be at least one"
        )
    return found


def read_pictures(paths: Sequence[Path], size: int, cure: str) -> NDArray[np.uint8]:
    """Return the pictures as pixels; ``size`` 0 leaves them as they are."""
    with warnings.catch_warnings():
        # It does not say which picture; `_picture` does.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # Pillow decodes outside Python's lock, so threads are enough.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return pixels_of(_decoded(pool, paths, size, cure))


def _decoded(
    pool: ThreadPoolExecutor, paths: Sequence[Path], size: int, cure: str
) -> Iterator[tuple[str, Image.Image]]:
    # Few at a time: photographs are large until they are resized.
    step = 256
    for start in range(0, len(paths), step):
        part = paths[start : start + step]
        pictures = pool.map(lambda path: _picture(path, size, cure), part)
        yield from zip(map(str, part), pictures, strict=True)


def _picture(path: Path, size: int, cure: str) -> Image.Image:
    with reading(path, cure), not_too_large("it"), Image.open(path) as picture:
        if picture.width * picture.height > (Image.MAX_IMAGE_PIXELS or math.inf):
            width, height = picture.size
            log(WARNING, "%s is very large: %dx%d pixels", path, width, height)
        picture.load()
    # The file is closed, its pixels are there.
    return square(str(path), picture, size) if size else picture.copy()


def _read(
    train: Sequence[tuple[Path, int]],
    test: Sequence[tuple[Path, int]],
    names: tuple[str, ...],
    image_size: int,
    cure: str,
) -> Decoded:
    images = same_channels(
        *(
            read_pictures([path for path, _ in x], image_size, cure)
            for x in (train, test)
        )
    )
    labels = [np.array([label for _, label in x]) for x in (train, test)]
    return Decoded(images[0], labels[0], images[1], labels[1], names)
