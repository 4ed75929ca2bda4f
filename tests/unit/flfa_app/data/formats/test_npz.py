from __future__ import annotations

import io
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import GREY, TEN, assert_same

# Offsets in an entry of a zip's directory, by the format's description.
FLAGS, METHOD = 8, 10


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def load(path: Path) -> object:
    load_dataset.cache_clear()
    return load_dataset("files", str(path))


def refuse(path: Path, message: str) -> None:
    """Check the error text, which names the file and the cure."""
    pattern = rf"{re.escape(str(path))} (is damaged|cannot be read): .*{message}.*; wri"
    with pytest.raises(ValueError, match=pattern):
        load(path)


def test_keys_of_medmnist_and_keras(tmp_path: Path) -> None:
    assert_same(load(write.npz(tmp_path / "a.npz", GREY)), GREY)
    keras = {
        "x_train": GREY["train_images"],
        "y_train": GREY["train_labels"],
        "x_test": GREY["test_images"],
        "y_test": GREY["test_labels"],
    }
    assert_same(load(write.npz(tmp_path / "b.npz", keras)), GREY)


def test_class_names(tmp_path: Path) -> None:
    """Those of the archive, or the numbers up to the largest label."""
    named = GREY | {"class_names": np.array(TEN)}
    path = write.npz(tmp_path / "named.npz", named)
    assert load_dataset("files", str(path)).class_names == tuple(TEN)
    path = write.npz(tmp_path / "numbered.npz", GREY)
    assert load_dataset("files", str(path)).class_names == tuple("0123456789")
    for i, names in enumerate((np.array("cat"), np.array([["cat", "dog"]]))):
        path = write.npz(tmp_path / f"{i}.npz", GREY | {"class_names": names})
        refuse(path, "its class_names have the shape")


def test_columns(tmp_path: Path) -> None:
    """Those with one value per training image."""
    writers, wards = np.array(["eve", "bob", "eve"] * 10), np.arange(30)
    others = {"train_note": np.arange(3), "test_writer": np.arange(20)}
    columns = {"train_writer": writers, "train_ward": wards}
    path = write.npz(tmp_path / "own.npz", GREY | columns | others)
    read = load_dataset("files", str(path)).columns
    assert read.keys() == {"writer", "ward"}
    assert read["writer"].tolist() == writers.tolist()
    assert read["ward"].tolist() == wards.tolist()


def test_wrong_arrays(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    write.npz(path, {k: v for k, v in GREY.items() if k != "test_labels"})
    refuse(path, r"it has .*test_images.*, not train_images")
    write.npz(path, GREY | {"train_labels": np.array([None] * 30)})
    refuse(path, "allow_pickle")
    with zipfile.ZipFile(path, "w") as archive:
        for key in GREY:
            archive.writestr(key, "a text")
    refuse(path, "train_images in it is not an array")


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (METHOD, 99, "compression method is not supported"),
        (FLAGS, 1, "encrypted"),
    ],
)
def test_overwritten_directory(
    tmp_path: Path, offset: int, value: int, message: str
) -> None:
    path = write.npz(tmp_path / "own.npz", GREY)
    content = bytearray(path.read_bytes())
    for entry in re.finditer(b"PK\x01\x02", bytes(content)):
        struct.pack_into("<H", content, entry.start() + offset, value)
    path.write_bytes(content)
    refuse(path, message)


def test_overwritten_offset(tmp_path: Path) -> None:
    """A seek before the beginning is an OSError without the name of the file."""
    path = write.npz(tmp_path / "own.npz", GREY)
    content = bytearray(path.read_bytes())
    # A later beginning of the directory means earlier beginnings of the members.
    offset = content.rindex(b"PK\x05\x06") + 16
    (begin,) = struct.unpack_from("<I", content, offset)
    struct.pack_into("<I", content, offset, begin + 1_000)
    path.write_bytes(content)
    refuse(path, "")


def test_lzma(tmp_path: Path) -> None:
    """It is read like other compressions, and has errors of its own."""
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for key, array in GREY.items():
            archive.writestr(f"{key}.npy", npy(array))
    assert_same(load(path), GREY)
    content = bytearray(path.read_bytes())
    content[200:1200] = b"\xff" * 1_000  # among the pixels of the first array
    path.write_bytes(content)
    refuse(path, "")


def test_header_that_asks_for_too_much_memory(tmp_path: Path) -> None:
    """10**15 images of 784 bytes."""
    path = tmp_path / "own.npz"
    huge = npy(GREY["train_images"]).replace(b"(30, ", b"(1000000000000000, ")
    # The header keeps its length: the number replaces spaces.
    huge = huge.replace(b" " * 14 + b"\n", b"\n", 1)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images.npy", huge)
        for key in ("train_labels", "test_images", "test_labels"):
            archive.writestr(f"{key}.npy", npy(GREY[key]))
    refuse(path, "it asks for more memory than this machine has")
