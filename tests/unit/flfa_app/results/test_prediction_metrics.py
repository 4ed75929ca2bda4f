"""Metrics of predictions against values derived by hand and scikit-learn."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from flfa_app.results.prediction_metrics import accuracy, feature_distances, macro_auc

Array = NDArray[Any]


def draw(samples: int, classes: int, decimals: int = 12) -> tuple[Array, Array]:
    """Probabilities that lean towards the labels; few decimals make ties."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(samples) % classes)
    logits = rng.normal(size=(samples, classes)) + np.eye(classes)[labels]
    odds = np.exp(logits).round(decimals) + 10.0**-decimals
    return odds / odds.sum(1, keepdims=True), labels


def test_accuracy_by_hand() -> None:
    """The first row is right, the second wrong; the tie goes to the first class."""
    scores = np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
    assert accuracy(scores, np.array([1, 1, 0])) == 2 / 3


def test_auc_by_hand() -> None:
    """Class 0 has samples 0 and 1, with 0.6 and 0.3 against 0.3 and 0.1.

    Pairs: 0.6 wins twice, 0.3 ties with 0.3 (half) and wins over 0.1: 3.5 of 4. Class
    1 has sample 2: its 0.7 wins over 0.4 and 0.1 and ties with 0.7: 2.5 of 3. Class 2
    has sample 3: 0.8 wins over 0, 0 and 0: 3 of 3.
    """
    probabilities = np.array(
        [[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.3, 0.7, 0.0], [0.1, 0.1, 0.8]]
    )
    expected = (3.5 / 4 + 2.5 / 3 + 1) / 3
    got = macro_auc(probabilities, np.array([0, 0, 1, 2]))
    assert got == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("samples", "classes", "decimals"), [(3, 3, 12), (60, 3, 1), (300, 10, 0)]
)
def test_auc_equals_that_of_scikit_learn(
    samples: int, classes: int, decimals: int
) -> None:
    probabilities, labels = draw(samples, classes, decimals)
    got = macro_auc(probabilities, labels)
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert got == pytest.approx(expected, abs=1e-12)


def test_auc_leaves_out_a_class_without_samples() -> None:
    probabilities, labels = draw(90, 3)
    some = labels != 1
    probabilities, labels = probabilities[some], labels[some]
    areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in (0, 2)]
    got = macro_auc(probabilities, labels)
    assert got == pytest.approx(sum(areas) / 2, abs=1e-12)


def test_auc_without_anything_to_compare_is_one_half() -> None:
    """A single class; ties of numbers or of nan in every pair."""
    assert macro_auc(draw(5, 3)[0], np.full(5, 2)) == 0.5
    for value in (1 / 3, math.nan):
        assert macro_auc(np.full((4, 3), value), np.array([0, 1, 2, 2])) == 0.5


def test_distances_by_hand() -> None:
    """Three classes in the plane; class 1 has no samples.

    Class 0: (0, 0), (6, 8): mean (3, 4), both at distance 5. Class 2: (3, 0) twice:
    mean (3, 0), distance 0. Class 3: (-1, 4), (1, 4), (0, 4): mean (0, 4), distances
    1, 1, 0, so 2/3. Intra = (5 + 0 + 2/3) / 3 = 17/9. The means are 4 (0-2), 3 (0-3)
    and 5 (2-3) apart: inter = 4. Separability = 36/17.
    """
    features = [[-1, 4], [0, 0], [6, 8], [3, 0], [3, 0], [1, 4], [0, 4]]
    labels = np.array([3, 0, 0, 2, 2, 3, 3])
    got = feature_distances(np.array(features, np.float32), labels)
    assert got == pytest.approx((17 / 9, 4, 36 / 17), abs=1e-12)


@pytest.mark.parametrize(
    ("features", "labels", "expected"),
    [
        ([0, 2], [4, 4], (1, math.nan, math.nan)),  # one class: no pair
        ([0, 2], [0, 1], (0, 2, math.inf)),  # no intra-class distance
        ([1, 1], [0, 1], (0, 0, math.nan)),
        ([math.inf, 0], [0, 1], (math.nan, math.inf, math.inf)),
    ],
)
def test_undefined_distances(
    features: list[float], labels: list[int], expected: tuple[float, ...]
) -> None:
    got = feature_distances(np.array(features, float)[:, None], np.array(labels))
    np.testing.assert_array_equal(got, expected)


def test_memory_grows_with_the_samples_and_not_with_their_square() -> None:
    """4,000 samples of 16 numbers: 64,000; all pairs would be 16 million."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(4000, 16)), rng.integers(0, 2, 4000)
    tracemalloc.start()
    try:
        feature_distances(features, labels)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * features.nbytes
