"""Conversion of Pillow's images to one array of pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Modes with eight bits per channel; all but the first two are converted to RGB.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


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
    if not arrays:
        return np.empty((0, 1, 1, 1), np.uint8)
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
