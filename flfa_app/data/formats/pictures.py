"""Pictures, one by one, to one array of pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["not_too_large", "pixels_of", "same_channels", "square"]

# With eight bits a channel; all but the first two are brought to RGB.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextmanager
def not_too_large(name: str) -> Iterator[None]:
    """Turn Pillow's refusal of a picture that would fill the memory into ValueError."""
    try:
        yield
    except Image.DecompressionBombError as problem:
        raise ValueError(
            f"{name} has too many pixels ({problem}); make it smaller first"
        ) from problem


def pixels_of(pictures: Iterable[tuple[str, Image.Image]]) -> NDArray[np.uint8]:
    """Return pictures of one size as (N, H, W, C): grey if all are, otherwise RGB.

    Parameters
    ----------
    pictures : Iterable[tuple[str, Image]]
        With a name each, for messages.

    Raises
    ------
    ValueError
        If they differ in size, or have more than eight bits a channel.
    """
    arrays: list[NDArray[np.uint8]] = []
    first = ""
    for name, picture in pictures:
        array = _array(name, picture)
        first = first or name
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            height, width = arrays[0].shape[:2]
            raise ValueError(
                f"{name} is {picture.width}x{picture.height} pixels, {first} "
                f"{width}x{height}; all must have one size (image-size resizes those "
                "in image folders)"
            )
        arrays.append(array)
    if not arrays:
        return np.empty((0, 1, 1, 1), np.uint8)
    channels = max(array.shape[2] for array in arrays)
    result = np.empty((len(arrays), *arrays[0].shape[:2], channels), np.uint8)
    for place, array in zip(result, arrays, strict=True):
        place[:] = array  # a grey one into all channels
    return result


def _array(name: str, picture: Image.Image) -> NDArray[np.uint8]:
    array = np.asarray(_plain(name, picture))
    return array[..., None] if array.ndim == 2 else array


def _plain(name: str, picture: Image.Image) -> Image.Image:
    """Return a picture in grey or RGB; raise where that would lose most of its bits."""
    if picture.mode not in _MODES:
        raise ValueError(
            f"{name} has Pillow's mode {picture.mode}; save it with 8 bits a channel"
        )
    mode = "L" if picture.mode in ("1", "L") else "RGB"
    return picture if picture.mode == mode else picture.convert(mode)


def square(name: str, picture: Image.Image, size: int) -> Image.Image:
    """Return the middle of a picture: the shorter side becomes ``size`` (bicubic).

    Raises
    ------
    ValueError
        If it has more than eight bits a channel.
    """
    picture = _plain(name, picture)  # a palette cannot be interpolated
    scale = size / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + size, top + size))


def same_channels(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Return images in colour if one of the arrays is; grey ones in three channels."""
    most = max(array.shape[-1] for array in arrays)
    return [
        array if array.shape[-1] == most else np.repeat(array, most, axis=-1)
        for array in arrays
    ]
