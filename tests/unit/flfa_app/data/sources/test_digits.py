from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flfa_app.data.loading import load_dataset
from flfa_app.data.sources import DATASETS


def test_digits_are_those_of_scikit_learn() -> None:
    """Every fifth image of each digit is a test image."""
    digits, dataset = load_digits(), load_dataset("digits")
    assert dataset.class_names == tuple(str(name) for name in digits.target_names)
    is_test = np.zeros(len(digits.target), bool)
    is_test[np.argsort(digits.target, kind="stable")[4::5]] = True
    np.testing.assert_array_equal(dataset.train[..., 0], digits.images[~is_test])
    np.testing.assert_array_equal(dataset.test[..., 0], digits.images[is_test])
    np.testing.assert_array_equal(dataset.train_labels, digits.target[~is_test])
    np.testing.assert_array_equal(dataset.test_labels, digits.target[is_test])
    source = DATASETS["digits"]
    assert (source.train_images, source.test_images) == (1438, 359)
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)


def test_missing_file_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "sklearn" / "__init__.py"
    spec = importlib.util.spec_from_file_location("sklearn", package)
    monkeypatch.setattr("flfa_app.data.sources.digits.find_spec", lambda name: spec)
    with pytest.raises(FileNotFoundError, match=r"digits\.csv\.gz; install"):
        DATASETS["digits"].find("", 0)
