from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import COLOUR, HUNDRED, assert_same


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(("name", "data"), [("cifar10", COLOUR), ("cifar100", HUNDRED)])
def test_batches(tmp_path: Path, name: str, data: write.Arrays, archive: bool) -> None:
    write.cifar(tmp_path, name, data, archive)
    dataset = load_dataset(name, str(tmp_path))
    assert_same(dataset, data)
    assert dataset.class_names[9] == "class 9"


def test_npz(tmp_path: Path) -> None:
    """In ``data-dir`` under the data set's name, or ``data-dir`` itself."""
    path = write.npz(tmp_path / "small.npz", COLOUR)
    dataset = load_dataset("cifar10", str(path))
    assert_same(dataset, COLOUR)
    assert dataset.class_names[3] == "cat"
    write.npz(tmp_path / "cifar100.npz", HUNDRED)
    assert load_dataset("cifar100", str(tmp_path)).class_names[99] == "99"


def test_archive_beside_an_incomplete_folder(tmp_path: Path) -> None:
    write.cifar(tmp_path, "cifar10", COLOUR, archive=True)
    (write.cifar(tmp_path, "cifar10", COLOUR) / "test_batch").unlink()
    assert_same(load_dataset("cifar10", str(tmp_path)), COLOUR)


@pytest.mark.parametrize("inner", [False, True])
def test_missing_batches_are_named(tmp_path: Path, offline: None, inner: bool) -> None:
    folder = write.cifar(tmp_path, "cifar10", COLOUR)
    data_dir = str(folder if inner else tmp_path)
    for file in ("batches.meta", "test_batch", "data_batch_4"):
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        with pytest.raises(
            FileNotFoundError, match=f"^{folder / file} is missing; unpack cifar"
        ):
            load_dataset("cifar10", data_dir)
        (folder / file).write_bytes(content)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_1, .* is missing; unp"):
        load_dataset("cifar10", data_dir)


ROWS = write.rows(COLOUR["train_images"][:2])
BATCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "names are a number": ("batches.meta", {"label_names": 10}, "of 10 names"),
    "names are missing": ("batches.meta", {}, "no list label_names of 10 names"),
    "too few names": ("batches.meta", {"label_names": ["a"]}, "of 10 names"),
    "no labels": ("data_batch_2", {"data": ROWS}, "no list labels"),
    "ragged labels": (
        "data_batch_2",
        {"data": ROWS, "labels": [[1], [2, 3]]},
        "inhomogeneous",
    ),
    "too few labels": (
        "test_batch",
        {"data": ROWS, "labels": [1]},
        r"labels have the shape \(1,\) for 2 images",
    ),
    "large labels": (
        "test_batch",
        {"data": ROWS, "labels": [1, 10]},
        "labels are from 1 to 10; with 10 classes",
    ),
    "no data": ("test_batch", {"labels": [1]}, "no data of 3x32x32 bytes"),
    "no images": (
        "data_batch_5",
        {"data": np.empty((0, 3072), np.uint8), "labels": []},
        "no data of 3x32x32 bytes",
    ),
    "floats": (
        "test_batch",
        {"data": np.ones((1, 3072)), "labels": [1]},
        "no data of 3x32x32 bytes: an array in it is not of bytes",
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_wrong_batches_are_named(tmp_path: Path, case: str) -> None:
    file, content, message = BATCHES[case]
    path = write.cifar(tmp_path, "cifar10", COLOUR) / file
    path.write_bytes(write.python2(content))
    with pytest.raises(ValueError, match=f"{file} is damaged: .*{message}") as caught:
        load_dataset("cifar10", str(tmp_path))
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).count("is damaged") == 1


@pytest.mark.parametrize(
    ("file", "share"),
    [
        ("data_batch_3", 0.0),
        ("data_batch_3", 0.01),
        ("data_batch_3", 0.5),
        ("test_batch", 0.99),
        ("batches.meta", 0.5),
    ],
)
def test_truncated_batches_are_named(tmp_path: Path, file: str, share: float) -> None:
    path = write.cifar(tmp_path, "cifar10", COLOUR) / file
    write.cut(path, share)
    with pytest.raises(ValueError, match=re.escape(str(path)) + " is damaged"):
        load_dataset("cifar10", str(tmp_path))


def cifar10_1(root: Path, version: str, data: write.Arrays) -> tuple[Path, Path]:
    images, labels = (
        root / f"cifar10.1_{version}_{part}.npy" for part in ("data", "labels")
    )
    np.save(images, data["train_images"])
    np.save(labels, data["train_labels"])
    return images, labels


def test_cifar10_1_is_a_further_test_set(tmp_path: Path) -> None:
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    versions = {
        version: write.arrays(n, 1, size=32, channels=3, classes=10)
        for version, n in (("v4", 7), ("v6", 5))
    }
    for version, data in versions.items():
        _, labels = cifar10_1(tmp_path, version, data)
    extra = load_dataset("cifar10", str(tmp_path)).extra_tests
    assert extra.keys() == {"cifar10.1-v4", "cifar10.1-v6"}
    for version, data in versions.items():
        images, numbers = extra[f"cifar10.1-{version}"]
        np.testing.assert_array_equal(images, data["train_images"])
        np.testing.assert_array_equal(numbers, data["train_labels"])
    labels.unlink()
    load_dataset.cache_clear()
    with pytest.raises(
        FileNotFoundError, match=r"v6_data\.npy exists, but .*v6_labels\.npy is missing"
    ):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
def test_wrong_cifar10_1(tmp_path: Path) -> None:
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    new = write.arrays(11, 1, size=32, channels=3, classes=11)
    images, labels = cifar10_1(tmp_path, "v6", new)
    content = images.read_bytes()

    def refuse(path: Path, message: str) -> None:
        with pytest.raises(
            ValueError,
            match=f"{re.escape(path.name)} is damaged: .*{message}.*; delete it and "
            "download it again from .*modestyachts",
        ):
            load_dataset("cifar10", str(tmp_path))

    refuse(labels, "labels are from 0 to 10")
    write.cut(images)
    refuse(images, "")
    for change in (b"{(", b"{{"):  # a tokenizer's and a parser's error
        images.write_bytes(content.replace(b"{'", change, 1))
        refuse(images, "")
    np.save(images, new["train_images"][:, ::2, ::2])
    refuse(images, r"\(11, 16, 16, 3\)")
    np.savez(tmp_path / "archive.npz", images=new["train_images"])
    (tmp_path / "archive.npz").rename(images)
    refuse(images, "it is an archive, not one array")
