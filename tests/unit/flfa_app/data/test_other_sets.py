"""The file of one data set is not taken for another of as many classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.test_formats import COLOUR, GREY, HUNDRED, assert_same

SMALL = write.arrays(20, 10, size=16, channels=3, classes=10)
GREY_32 = write.arrays(20, 10, size=32, classes=10)
COLOUR_28 = write.arrays(20, 10, channels=3, classes=10)


@pytest.mark.parametrize("kind", ["npz", "saved"])
@pytest.mark.parametrize(
    ("name", "data", "has", "needs"),
    [
        ("fashionmnist", COLOUR, "32x32 pixels, 3", "28x28 pixels, 1"),
        ("fashionmnist", COLOUR_28, "28x28 pixels, 3", "28x28 pixels, 1"),
        ("cifar10", GREY, "28x28 pixels, 1", "32x32 pixels, 3"),
        ("cifar10", GREY_32, "32x32 pixels, 1", "32x32 pixels, 3"),
        ("cifar10", SMALL, "16x16 pixels, 3", "32x32 pixels, 3"),
        ("cifar100", GREY, "28x28 pixels, 1", "32x32 pixels, 3"),
    ],
)
def test_images_of_another_kind(
    tmp_path: Path, name: str, data: write.Arrays, has: str, needs: str, kind: str
) -> None:
    if kind == "npz":
        path = write.npz(tmp_path / f"{name}.npz", data)
    else:
        path = write.saved(tmp_path / name, data)
    with pytest.raises(
        ValueError, match=f"is not {name}: it has {has} ch.*, {name} has {needs} "
    ) as caught:
        load_dataset(name, str(tmp_path))
    assert str(caught.value).startswith(str(path))
    assert "dataset to 'files' and data-dir to this one" in str(caught.value)


def test_idx_files_of_another_size(tmp_path: Path) -> None:
    write.fashion(tmp_path, GREY_32)
    with pytest.raises(ValueError, match=r"is not fashionmnist: .*32x32"):
        load_dataset("fashionmnist", str(tmp_path))


@pytest.mark.parametrize("kind", ["npz", "saved", "batches"])
@pytest.mark.parametrize("classes", [10, 20])
def test_labels_that_are_not_the_fine_ones(
    tmp_path: Path, classes: int, kind: str
) -> None:
    """CIFAR-10 has ten; the coarse labels of CIFAR-100 are twenty."""
    data = write.arrays(40, 20, size=32, channels=3, classes=classes)
    if kind == "npz":
        write.npz(tmp_path / "cifar100.npz", data)
    elif kind == "saved":
        write.saved(tmp_path / "cifar100", data)
    else:
        write.cifar(tmp_path, "cifar100", data)
    with pytest.raises(
        ValueError,
        match=f"cifar100.* labels are from 0 to {classes - 1}, like those of",
    ):
        load_dataset("cifar100", str(tmp_path))


def test_a_part_of_cifar100_is_cifar100(tmp_path: Path) -> None:
    """Few images, of four classes only: one beyond 19 tells."""
    labels = np.array([3, 99, 50, 7], np.uint8)
    data = {
        "train_images": HUNDRED["train_images"][:4],
        "train_labels": labels,
        "test_images": HUNDRED["test_images"][:4],
        "test_labels": labels % 10,
    }
    path = write.npz(tmp_path / "cifar100.npz", data)
    assert_same(load_dataset("cifar100", str(path)), data)
