"""Fashion-MNIST: four files in the idx format, compressed or not."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.declaration import DatasetReader, DatasetSource, RawDataset
from flfa_app.data.sources.common import (
    find_common_format,
    hub_dataset,
    missing_dataset_text,
)
from flfa_app.data.validation import report_damage

CLASS_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
# Of Debian's package dataset-fashion-mnist.
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class FashionMNIST(DatasetSource):
    """The idx files, also in the folders of torchvision and Debian."""

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find the files; download the data set if they are missing."""
        root = Path(data_dir).expanduser() if data_dir else DEBIAN_FOLDER
        cure = f"delete it and download it again from {self.url}"
        for folder in (root, root / "raw", root / "FashionMNIST" / "raw"):
            if files := self._files_in(folder):
                read = partial(_read, files, cure)
                return DatasetReader(str(folder), cure, read, files)
        if reader := find_common_format(self.name, root, CLASS_NAMES, cure):
            return reader
        download = f"download the four idx files from {self.url}"
        text = missing_dataset_text(self.name, [f"{_FILES[0]}[.gz]"], root, download)
        return hub_dataset("zalando-datasets/fashion_mnist", CLASS_NAMES, text)

    def _files_in(self, folder: Path) -> tuple[Path, ...]:
        """Return the four files, or none if the folder has none of them."""
        present = {
            file: path
            for file in _FILES
            for path in (folder / file, folder / f"{file}.gz")
            if path.is_file()
        }
        absent = [file for file in _FILES if file not in present]
        if present and absent:
            raise FileNotFoundError(
                f"{folder} has {', '.join(path.name for path in present.values())}, "
                f"but not {', '.join(absent)} (or .gz); download it from {self.url}"
            )
        return tuple(present[file] for file in _FILES) if present else ()


def _read(files: tuple[Path, ...], cure: str) -> RawDataset:
    train, train_labels, test, test_labels = (
        _read_idx(path, 1 if "labels" in path.name else 3, cure) for path in files
    )
    return RawDataset(train, train_labels, test, test_labels, CLASS_NAMES)


def _read_idx(path: Path, dimensions: int, cure: str) -> NDArray[np.uint8]:
    """Read an array of bytes with a known number of dimensions.

    An idx file has two zeros, the type code and the number of dimensions; the length of
    each dimension in four bytes, the highest byte first; then the values.

    torchvision's reader does not replace this one. Measured with version 0.29: it reads
    neither ``.gz`` files nor another folder than ``FashionMNIST/raw``, names no file in
    its errors, and accepts 5 labels for 30 images.
    """
    with report_damage(path, cure):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        magic = bytes([0, 0, 8, dimensions])  # 8 is the type code of unsigned bytes
        if content[:4] != magic:
            raise ValueError(
                f"it begins with {content[:4].hex() or 'nothing'}; an idx file with "
                f"{dimensions} dimension(s) begins with {magic.hex()}"
            )
        header = 4 + 4 * dimensions
        if len(content) < header:
            raise ValueError(f"it ends after {len(content)} bytes, in its header")
        shape = tuple(np.frombuffer(content[4:header], ">u4").tolist())
        # Python's whole numbers: the product of absurd lengths may exceed 64 bits.
        expected = header + int(np.prod(shape, dtype=object))
        if len(content) != expected:
            raise ValueError(
                f"it has {len(content):,} bytes; by its header it should have "
                f"{expected:,}"
            )
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


SOURCES = (
    FashionMNIST(
        name="fashionmnist",
        display_name="Fashion-MNIST",
        url="https://github.com/zalandoresearch/fashion-mnist",
        train_images=60_000,
        test_images=10_000,
        image_size=28,
        channels=1,
        classes=10,
    ),
)
