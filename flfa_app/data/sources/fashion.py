"""Fashion-MNIST: four files in the idx format, packed or not."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.sources.named import expecting, find_anyhow, from_hub, missing
from flfa_app.data.validation import Decoded, Source, reading

__all__ = ["CLASS_NAMES", "DEBIAN", "find_fashion"]

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_SHAPE = 28, 1
_PLACE = "https://github.com/zalandoresearch/fashion-mnist"
_BYTES = 0x08  # idx's code for unsigned bytes


def find_fashion(name: str, data_dir: str, image_size: int) -> Source:
    """Find the idx files, also where torchvision and Debian put them."""
    size, channels = _SHAPE
    return expecting(_find(name, data_dir), name, size, channels)


def _find(name: str, data_dir: str) -> Source:
    roots = [Path(data_dir).expanduser()] if data_dir else [DEBIAN]
    cure = f"delete it and download it again from {_PLACE}"
    for root in roots:
        for folder in (root, root / "raw", root / "FashionMNIST" / "raw"):
            if files := _files_in(folder):
                return Source(str(folder), cure, partial(_read, files, cure), files)
        if source := find_anyhow(name, root, CLASS_NAMES, cure):
            return source
    get = f"download the four idx files from {_PLACE}"
    text = missing(name, [f"{_FILES[0]}[.gz]"], roots, get)
    return from_hub(name, "zalando-datasets/fashion_mnist", CLASS_NAMES, text)


def _files_in(folder: Path) -> tuple[Path, ...]:
    found = {
        file: path
        for file in _FILES
        for path in (folder / file, folder / f"{file}.gz")
        if path.is_file()
    }
    if found and (absent := [file for file in _FILES if file not in found]):
        raise FileNotFoundError(
            f"{folder} has {', '.join(path.name for path in found.values())}, but not "
            f"{', '.join(absent)} (or .gz); download it from {_PLACE}"
        )
    return tuple(found[file] for file in _FILES) if found else ()


def _read(files: tuple[Path, ...], cure: str) -> Decoded:
    arrays = [read_idx(path, 1 if "labels" in path.name else 3, cure) for path in files]
    return Decoded(arrays[0], arrays[1], arrays[2], arrays[3], CLASS_NAMES)


def read_idx(path: Path, dimensions: int, cure: str) -> NDArray[np.uint8]:
    """Read a file of bytes with so many dimensions.

    Two zeros, the code of the type and the number of dimensions; then the length of
    each in four bytes, the highest first; then the values.
    """
    with reading(path, cure):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        magic = bytes([0, 0, _BYTES, dimensions])
        if content[:4] != magic:
            raise ValueError(
                f"it begins with {content[:4].hex() or 'nothing'}, an idx file of "
                f"{dimensions} dimensions with {magic.hex()}"
            )
        header = 4 + 4 * dimensions
        if len(content) < header:
            raise ValueError(f"it ends after {len(content)} bytes, in its header")
        shape = tuple(np.frombuffer(content[4:header], ">u4").tolist())
        needed = header + int(np.prod(shape, dtype=object))
        if len(content) != needed:
            raise ValueError(
                f"its header speaks of {needed:,} bytes, it has {len(content):,}"
            )
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
