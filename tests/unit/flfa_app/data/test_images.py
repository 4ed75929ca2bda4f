from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from sklearn.datasets import load_digits

from flfa_app.data.dataset import DataDescription, channel_statistics
from flfa_app.data.loading import load_dataset
from flfa_app.data.sources import DATASETS
from tests.unit.flfa_app.data import write


def test_digits() -> None:
    images = load_dataset("digits")
    assert images.train.shape == (1438, 8, 8, 1)
    assert images.test.shape == (359, 8, 8, 1)
    assert (images.channels, images.size, len(images.class_names)) == (1, 8, 10)
    assert (images.train.min(), images.train.max()) == (0, 16)
    # A fifth of each digit, rounded, is for testing.
    train, test = np.bincount(images.train_labels), np.bincount(images.test_labels)
    assert np.all(np.abs(test - (train + test) / 5) <= 1)


def test_the_digits_are_those_of_scikit_learn() -> None:
    digits, images = load_digits(), load_dataset("digits")
    assert images.class_names == tuple(str(name) for name in digits.target_names)
    order = np.argsort(digits.target, kind="stable")
    for_testing = np.zeros(len(order), bool)
    for_testing[order[4::5]] = True
    np.testing.assert_array_equal(images.train[..., 0], digits.images[~for_testing])
    np.testing.assert_array_equal(images.test[..., 0], digits.images[for_testing])
    np.testing.assert_array_equal(images.train_labels, digits.target[~for_testing])
    np.testing.assert_array_equal(images.test_labels, digits.target[for_testing])


def test_scikit_learn_without_its_digits_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "sklearn" / "__init__.py"
    spec = importlib.util.spec_from_file_location("sklearn", package)
    monkeypatch.setattr("flfa_app.data.sources.digits.find_spec", lambda name: spec)
    with pytest.raises(FileNotFoundError, match=r"digits\.csv\.gz; install"):
        DATASETS["digits"].find("", 0)


def test_loading_again_reads_nothing() -> None:
    assert load_dataset("digits") is load_dataset("digits")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_tensor_is_the_normalised_pixels(channels: int) -> None:
    """Against the formula, image by image; more images than one piece of work has."""
    data = write.arrays(1500, 1, size=4, channels=channels)["train_images"]
    pixels = data.reshape(1500, 4, 4, channels)
    mean, deviation = channel_statistics(pixels)
    made = DataDescription(mean, deviation, 4, ("a", "b")).tensor(pixels)
    assert made.dtype == torch.float32
    assert made.shape == (1500, channels, 4, 4)
    assert made.stride() == (16 * channels, 1, 4 * channels, channels)
    for i in (0, 1023, 1024, 1499):
        for c in range(channels):
            exact = (pixels[i, ..., c].astype(float) - mean[c]) / deviation[c]
            np.testing.assert_array_equal(made[i, c], exact.astype(np.float32))
    np.testing.assert_allclose(made.double().mean((0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(made.double().std((0, 2, 3), correction=0), 1, atol=1e-6)


def test_statistics_by_hand() -> None:
    """Red 0, 0, 4, 4: mean 2, deviation 2; green 1, 3, 1, 3: 2 and 1; blue all 7."""
    pixels = np.array([[[[0, 1, 7], [0, 3, 7]], [[4, 1, 7], [4, 3, 7]]]], np.uint8)
    assert channel_statistics(pixels) == ((2.0, 2.0, 7.0), (2.0, 1.0, 1.0))


def test_the_description_goes_over_the_wire_unchanged(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "own.npz", write.arrays(channels=3))
    description = load_dataset("files", str(path)).description
    sent = ConfigRecord(description.to_config())
    assert sent.keys() == {"pixel-mean", "pixel-std", "image-size", "class-names"}
    assert DataDescription.from_config(sent) == description
    del sent["pixel-std"]
    with pytest.raises(ValueError, match="no pixel-std in its config"):
        DataDescription.from_config(sent)
