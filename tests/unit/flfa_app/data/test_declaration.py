"""Declarations of the data sets, and the check of files against them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import medmnist
import numpy as np
import pytest

from flfa_app.data.declaration import RawDataset
from flfa_app.data.loading import load_dataset
from flfa_app.data.sources import DATASETS
from tests.federation import ROOT
from tests.unit.flfa_app.data import write


def test_medmnist_is_declared_as_in_its_package() -> None:
    single_label = {
        name: info
        for name, info in medmnist.INFO.items()
        if "multi-label" not in info["task"] and not name.endswith("3d")
    }
    others = {"digits", "fashionmnist", "cifar10", "cifar100", "imagenet100", "files"}
    assert set(DATASETS) - others == set(single_label)
    for name, info in single_label.items():
        source = DATASETS[name]
        assert source.display_name == info["python_class"]
        assert source.url == info["url"]
        assert source.train_images == info["n_samples"]["train"]
        assert source.test_images == info["n_samples"]["test"]
        assert source.channels == info["n_channels"]
        assert source.classes == len(info["label"])


def test_names_are_known_without_heavy_libraries() -> None:
    heavy = {"datasets", "medmnist", "pandas", "pyarrow", "sklearn", "torch"}
    code = (
        "import sys; from flfa_app.data.sources import DATASETS; assert DATASETS\n"
        f"print(*{heavy | {'torchvision'}} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def raw(size: int, channels: int, classes: int) -> RawDataset:
    """Validated arrays: images of shape (N, H, W, C)."""
    data = write.arrays(40, 20, size=size, channels=channels, classes=classes)
    images = (
        data[f"{x}_images"].reshape(-1, size, size, channels) for x in ("train", "test")
    )
    train, test = images
    names = tuple(str(i) for i in range(classes))
    return RawDataset(train, data["train_labels"], test, data["test_labels"], names)


@pytest.mark.parametrize(
    ("size", "channels", "classes"),
    [(28, 3, 8), (28, 3, 10), (28, 1, 9), (8, 3, 9)],
)
def test_another_form_than_declared(size: int, channels: int, classes: int) -> None:
    source = DATASETS["pathmnist"]
    source.verify(raw(28, 3, 9), "a file")
    with pytest.raises(ValueError, match=r"^a file is not pathmnist: ") as caught:
        source.verify(raw(size, channels, classes), "a file")
    for text in (
        f"it has {size}x{size} pixels, {channels} channel(s) and {classes} classes "
        f"(labels from 0 to {classes - 1})",
        "pathmnist has 28x28 pixels, 3 channel(s) and 9 classes (labels from 0 to 8)",
        "https://zenodo.org/",
        "set dataset to 'files' and data-dir to this one",
    ):
        assert text in str(caught.value)


def test_only_what_is_declared_is_compared() -> None:
    DATASETS["files"].verify(raw(5, 2, 3), "a file")


@pytest.mark.parametrize("classes", [10, 20])
def test_labels_that_are_not_the_fine_labels_of_cifar100(classes: int) -> None:
    """CIFAR-10 has ten classes; the coarse labels of CIFAR-100 are twenty."""
    dataset = raw(32, 3, 100)
    few = {
        f"{x}_labels": np.arange(n) % classes for x, n in (("train", 40), ("test", 20))
    }
    with pytest.raises(
        ValueError, match=f"not cifar100: its labels are from 0 to {classes - 1}, like"
    ):
        DATASETS["cifar100"].verify(RawDataset(**vars(dataset) | few), "a file")
    # One training label beyond 19 is enough: a subset may have few classes.
    few["train_labels"][3] = 20
    DATASETS["cifar100"].verify(RawDataset(**vars(dataset) | few), "a file")


def test_files_of_another_data_set_are_named(tmp_path: Path) -> None:
    write.fashion(tmp_path, write.arrays(20, 10, size=32, classes=10))
    with pytest.raises(
        ValueError, match="is not fashionmnist: it has 32x32 pixels, 1 "
    ):
        load_dataset("fashionmnist", str(tmp_path))
