from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord

from flfa_app.data.dataset import DataDescription, channel_statistics
from tests.unit.flfa_app.data import write


@pytest.mark.parametrize("channels", [1, 3])
def test_tensor_is_the_normalised_pixels(channels: int) -> None:
    """Compared with the formula; more images than one chunk has."""
    data = write.arrays(1500, 1, size=4, channels=channels)["train_images"]
    pixels = data.reshape(1500, 4, 4, channels)
    mean, deviation = channel_statistics(pixels)
    tensor = DataDescription(mean, deviation, 4, ("a", "b")).tensor(pixels)
    assert tensor.dtype == torch.float32
    assert tensor.shape == (1500, channels, 4, 4)
    assert tensor.stride() == (16 * channels, 1, 4 * channels, channels)
    for i in (0, 1023, 1024, 1499):
        for c in range(channels):
            exact = (pixels[i, ..., c].astype(float) - mean[c]) / deviation[c]
            np.testing.assert_array_equal(tensor[i, c], exact.astype(np.float32))
    axes = (0, 2, 3)
    np.testing.assert_allclose(tensor.double().mean(axes), 0, atol=1e-6)
    np.testing.assert_allclose(tensor.double().std(axes, correction=0), 1, atol=1e-6)


def test_statistics_by_hand() -> None:
    """Red 0, 0, 4, 4: mean 2, deviation 2; green 1, 3, 1, 3: 2 and 1; blue all 7."""
    pixels = np.array([[[[0, 1, 7], [0, 3, 7]], [[4, 1, 7], [4, 3, 7]]]], np.uint8)
    assert channel_statistics(pixels) == ((2.0, 2.0, 7.0), (2.0, 1.0, 1.0))


def test_description_survives_a_message() -> None:
    description = DataDescription((0.1, 2.0), (1 / 3, 4.0), 28, ("cat", "dog"))
    config = ConfigRecord(description.to_config())
    assert config.keys() == {"pixel-mean", "pixel-std", "image-size", "class-names"}
    assert DataDescription.from_config(config) == description
    del config["pixel-std"]
    with pytest.raises(ValueError, match="no pixel-std in its config"):
        DataDescription.from_config(config)
