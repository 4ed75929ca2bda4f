"""Image folders, ``train/<class>/<image>`` and ``test/<class>/<image>``, and Pillow.

Images of every source are read with Pillow and become one array of pixels.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray
from PIL import Image

from flfa_app.data.declaration import DatasetReader, RawDataset
from flfa_app.data.validation import report_damage

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# Modes with eight bits per channel; all but the first two are converted to RGB.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
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
        images = [read_images(files, image_size, _CURE) for files, _ in (train, test)]
        train_images, test_images = same_channels(*images)
        return RawDataset(train_images, train[1], test_images, test[1], names)

    # The labels follow the order of the names, which the files do not tell.
    cache_key = json.dumps(names)
    return DatasetReader(str(root), _CURE, read, (*train[0], *test[0]), cache_key)


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted, without hidden ones."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )


def list_images(
    folder: Path, class_names: Sequence[str], *, allow_empty_classes: bool = False
) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the image files of the class folders, without hidden ones, and labels.

    A class without an image is a FileNotFoundError; with ``allow_empty_classes``, one
    image of any class is enough.
    """
    suffixes = ", ".join(_SUFFIXES)
    images: list[Path] = []
    labels: list[int] = []
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
        images += paths
        labels += [label] * len(paths)
    if not images:
        raise FileNotFoundError(
            f"{folder} has no image ({suffixes}) in a folder with the name of its "
            "class; at least one is needed"
        )
    return images, np.array(labels)


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


@contextmanager
def refuse_huge_image(name: str) -> Iterator[None]:
    """Turn Pillow's refusal of an image that would fill the memory into ValueError."""
    try:
        yield
    except Image.DecompressionBombError as problem:
        raise ValueError(
            f"{name} has too many pixels ({problem}); make it smaller first"
        ) from problem


def stack_images(images: Iterable[tuple[str, Image.Image]]) -> NDArray[np.uint8]:
    """Return images of one size as (N, H, W, C): grey if all are, otherwise RGB.

    Each has its name for error messages. Images that differ in size, or have more than
    eight bits per channel, are a ValueError.
    """
    arrays: list[NDArray[np.uint8]] = []
    first_name = ""
    for name, image in images:
        array = np.asarray(_grey_or_rgb(name, image))
        arrays.append(array[..., None] if array.ndim == 2 else array)
        first_name = first_name or name
        height, width = arrays[0].shape[:2]
        if image.size != (width, height):
            raise ValueError(
                f"{name} has {image.width}x{image.height} pixels, {first_name} has "
                f"{width}x{height}; all must have one size (image-size resizes those "
                "in image folders)"
            )
    channels = max(array.shape[2] for array in arrays)
    stacked = np.empty((len(arrays), *arrays[0].shape[:2], channels), np.uint8)
    for target, array in zip(stacked, arrays, strict=True):
        target[:] = array  # a grey image is copied to every channel
    return stacked


def _grey_or_rgb(name: str, image: Image.Image) -> Image.Image:
    """Convert an image; raise ValueError if that would lose most of its bits."""
    if image.mode not in _MODES:
        raise ValueError(
            f"{name} has Pillow's mode {image.mode}; save it with 8 bits per channel"
        )
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def crop_square(name: str, image: Image.Image, size: int) -> Image.Image:
    """Resize an image (bicubic, shorter side ``size``) and crop its middle."""
    image = _grey_or_rgb(name, image)  # the indices of a palette cannot be interpolated
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + size, top + size))


def same_channels(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Repeat the channel of grey arrays if another array is in colour."""
    most = max(array.shape[-1] for array in arrays)
    return [
        array if array.shape[-1] == most else np.repeat(array, most, axis=-1)
        for array in arrays
    ]
