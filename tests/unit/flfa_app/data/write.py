"""Small data sets, written in every format as their publishers write it."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from flfa_app.data.dataset import ImageDataset

Arrays = dict[str, np.ndarray]


def arrays(
    train: int = 12,
    test: int = 6,
    *,
    size: int = 28,
    channels: int = 1,
    classes: int = 2,
) -> Arrays:
    """Random images with the keys of MedMNIST's files; every class occurs."""
    draw = np.random.default_rng([train, test, size, channels, classes])
    shape = (size, size) if channels == 1 else (size, size, channels)
    return {
        "train_images": draw.integers(0, 256, (train, *shape), np.uint8),
        "train_labels": np.arange(train, dtype=np.uint8) % classes,
        "test_images": draw.integers(0, 256, (test, *shape), np.uint8),
        "test_labels": np.arange(test, dtype=np.uint8) % classes,
    }


GREY = arrays(30, 20, classes=10)
COLOUR = arrays(20, 10, size=32, channels=3, classes=10)
HUNDRED = arrays(200, 100, size=32, channels=3, classes=100)
TEN = [f"class {i}" for i in range(10)]


def assert_same(dataset: ImageDataset, data: Arrays) -> None:
    """Check that a data set has the images and labels that were written."""
    for split in ("train", "test"):
        pixels = data[f"{split}_images"]
        pixels = pixels if pixels.ndim == 4 else pixels[..., None]
        np.testing.assert_array_equal(getattr(dataset, split), pixels)
        labels = getattr(dataset, f"{split}_labels")
        np.testing.assert_array_equal(labels, data[f"{split}_labels"].reshape(-1))
        assert labels.dtype == np.int64


def cut(path: Path, share: float = 0.6) -> None:
    """Truncate a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def npz(path: Path, data: Arrays) -> Path:
    np.savez_compressed(path, **data)
    return path


def idx(path: Path, array: np.ndarray) -> Path:
    """Magic number, sizes (highest byte first), values: the format's description."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def fashion(folder: Path, data: Arrays, ending: str = ".gz") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [
        idx(folder / f"{file}{ending}", data[key])
        for file, key in (
            ("train-images-idx3-ubyte", "train_images"),
            ("train-labels-idx1-ubyte", "train_labels"),
            ("t10k-images-idx3-ubyte", "test_images"),
            ("t10k-labels-idx1-ubyte", "test_labels"),
        )
    ]


class Python2Pickler(pickle._Pickler):
    """Writes texts and bytes like Python 2, which wrote the official batches."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_text(self, value: Any) -> None:
        raw = value.encode("latin1") if isinstance(value, str) else bytes(value)
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_text


def python2(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    # NumPy has moved the function since then.
    return buffer.getvalue().replace(b"numpy._core.", b"numpy.core.")


def rows(images: np.ndarray) -> np.ndarray:
    """One image per row: all red values, all green ones, all blue ones."""
    return np.stack(
        [np.concatenate([x[..., c].ravel() for c in range(3)]) for x in images]
    )


def cifar_files(name: str, data: Arrays) -> dict[str, bytes]:
    if name == "cifar10":
        labels, meta = "labels", ("batches.meta", "label_names", 10)
        parts = np.array_split(np.arange(len(data["train_images"])), 5)
        train = {f"data_batch_{i}": part for i, part in enumerate(parts, 1)}
        test = "test_batch"
    else:
        labels, meta = "fine_labels", ("meta", "fine_label_names", 100)
        train = {"train": np.arange(len(data["train_images"]))}
        test = "test"
    batches = {
        file: (data["train_images"][part], data["train_labels"][part])
        for file, part in train.items()
    }
    batches[test] = data["test_images"], data["test_labels"]
    files = {
        file: python2({"data": rows(images), labels: numbers.tolist()})
        for file, (images, numbers) in batches.items()
    }
    file, key, number = meta
    return files | {file: python2({key: [f"class {i}" for i in range(number)]})}


FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


def cifar(root: Path, name: str, data: Arrays, archive: bool = False) -> Path:
    files = cifar_files(name, data)
    if archive:
        path = root / f"cifar-{name[5:]}-python.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for file, content in files.items():
                member = tarfile.TarInfo(f"{FOLDERS[name]}/{file}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return path
    folder = root / FOLDERS[name]
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


def class_folders(
    folder: Path, images: np.ndarray, labels: np.ndarray, names: list[str]
) -> None:
    """One folder per class, with PNG files, which are lossless."""
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / names[label] / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def image_folder(root: Path, data: Arrays, names: list[str]) -> None:
    for split in ("train", "test"):
        images, labels = data[f"{split}_images"], data[f"{split}_labels"]
        class_folders(root / split, images, labels, names)


def photographs(root: Path, sizes: dict[str, tuple[int, int]]) -> None:
    """Images with a red left half and a blue right half, of (width, height) by path."""
    for path, (width, height) in sizes.items():
        image = np.zeros((height, width, 3), np.uint8)
        image[:, : width // 2, 0] = image[:, width // 2 :, 2] = 200
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / path, quality=95)


def saved(
    folder: Path,
    data: Arrays,
    *,
    names: list[str] | None = None,
    columns: tuple[str, str] = ("image", "label"),
    **further: Any,
) -> Path:
    """A folder of ``save_to_disk``; ``further`` are columns of the training split."""
    from datasets import ClassLabel, Dataset, DatasetDict

    splits = {}
    for split in ("train", "test"):
        content = {
            columns[0]: [Image.fromarray(x) for x in data[f"{split}_images"]],
            columns[1]: data[f"{split}_labels"].tolist(),
        }
        if split == "train":
            content |= further
        splits[split] = Dataset.from_dict(content)
        if names:
            splits[split] = splits[split].cast_column(
                columns[1], ClassLabel(names=names)
            )
    DatasetDict(splits).save_to_disk(str(folder))
    return folder
