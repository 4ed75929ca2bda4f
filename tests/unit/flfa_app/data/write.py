"""Small data sets in every format, as the programs of their owners write them."""

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

Arrays = dict[str, np.ndarray]


def arrays(
    train: int = 12,
    test: int = 6,
    *,
    size: int = 28,
    channels: int = 1,
    classes: int = 2,
) -> Arrays:
    """Noise under the names that MedMNIST's files have; every class is there."""
    draw = np.random.default_rng([train, test, size, channels, classes])
    shape = (size, size) if channels == 1 else (size, size, channels)
    return {
        "train_images": draw.integers(0, 256, (train, *shape), np.uint8),
        "train_labels": np.arange(train, dtype=np.uint8) % classes,
        "test_images": draw.integers(0, 256, (test, *shape), np.uint8),
        "test_labels": np.arange(test, dtype=np.uint8) % classes,
    }


def npz(path: Path, data: Arrays) -> Path:
    np.savez_compressed(path, **data)
    return path


def idx(path: Path, array: np.ndarray) -> Path:
    """By the format's description: magic, sizes (highest byte first), values."""
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
    """Writes texts and bytes as Python 2 did, which wrote the official batches."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_text(self, value: Any) -> None:
        raw = value.encode("latin1") if isinstance(value, str) else bytes(value)
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_text


def python2(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    # NumPy has moved the function since.
    return buffer.getvalue().replace(b"numpy._core.", b"numpy.core.")


def rows(images: np.ndarray) -> np.ndarray:
    """An image in a row: all red values, all green ones, all blue ones."""
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


def pictures(
    folder: Path, images: np.ndarray, labels: np.ndarray, names: list[str]
) -> None:
    """PNG, because it gives back what it was given."""
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / names[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:04}.png")


def image_folder(
    root: Path, data: Arrays, names: list[str], test: str = "test"
) -> None:
    pictures(root / "train", data["train_images"], data["train_labels"], names)
    pictures(root / test, data["test_images"], data["test_labels"], names)


def saved(
    folder: Path,
    data: Arrays,
    *,
    names: list[str] | None = None,
    columns: tuple[str, str] = ("image", "label"),
    **further: Any,
) -> Path:
    """With ``save_to_disk``; further columns are those of the training images."""
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
