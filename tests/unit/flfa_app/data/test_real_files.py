"""Real data sets, if this machine has them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from flfa_app.data.loading import load_dataset
from flfa_app.data.sources.fashion_mnist import DEBIAN_FOLDER
from tests.federation import ROOT

REAL = Path(os.environ.get("FLFA_TEST_DATA") or ROOT.parent / "shared" / "data")
MEDMNIST = REAL / "medmnist-small"
CIFAR = REAL / "cifar10_small.npz"

# Channels and classes, from MedMNIST's paper.
SETS = {
    "bloodmnist": (3, 8),
    "breastmnist": (1, 2),
    "pathmnist": (3, 9),
    "pneumoniamnist": (1, 2),
}


@pytest.mark.parametrize("name", SETS)
def test_medmnist(name: str) -> None:
    if not (MEDMNIST / f"{name}.npz").is_file():
        pytest.skip(f"no medmnist-small/{name}.npz in the folder FLFA_TEST_DATA")
    channels, classes = SETS[name]
    dataset = load_dataset(name, str(MEDMNIST))
    assert dataset.train.shape[1:] == dataset.test.shape[1:] == (28, 28, channels)
    assert set(dataset.train_labels) == set(range(classes)) == set(dataset.test_labels)
    assert len(dataset.class_names) == classes
    with np.load(MEDMNIST / f"{name}.npz") as file:
        np.testing.assert_array_equal(dataset.train.squeeze(), file["train_images"])
        np.testing.assert_array_equal(dataset.test.squeeze(), file["test_images"])
        assert dataset.test_labels.tolist() == file["test_labels"][:, 0].tolist()


def test_cifar10() -> None:
    if not CIFAR.is_file():
        pytest.skip("no cifar10_small.npz in the folder FLFA_TEST_DATA")
    dataset = load_dataset("cifar10", str(CIFAR))
    assert dataset.train.shape == (10_000, 32, 32, 3)
    assert len(dataset.class_names) == 10
    # The means of CIFAR-10 are 125.3, 123.0 and 113.9; this is a fifth of it.
    np.testing.assert_allclose(dataset.mean, (125.3, 123.0, 113.9), atol=1.5)


def test_fashion_mnist_from_debian() -> None:
    """6,000 and 1,000 images per class; the pixels are at the end of the file."""
    if not DEBIAN_FOLDER.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    dataset = load_dataset("fashionmnist")
    assert dataset.train.shape == (60_000, 28, 28, 1)
    assert np.bincount(dataset.train_labels).tolist() == [6_000] * 10
    assert np.bincount(dataset.test_labels).tolist() == [1_000] * 10
    with gzip.open(DEBIAN_FOLDER / "t10k-images-idx3-ubyte.gz") as file:
        content = file.read()
    assert dataset.test.tobytes() == content[-10_000 * 28 * 28 :]
