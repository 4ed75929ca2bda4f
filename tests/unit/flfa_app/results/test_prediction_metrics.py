"""Metrics of predictions against values derived by hand, scikit-learn and loops."""

from __future__ import annotations

import math
import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from flfa_app.results.prediction_metrics import (
    accuracy,
    feature_distances,
    macro_auc,
)

Array = NDArray[Any]


def auc_by_pairs(probabilities: Array, labels: Array) -> float:
    """The definition: every pair of a sample of the class and another sample."""
    areas = []
    for label in set(labels.tolist()):
        inside = probabilities[labels == label, label].tolist()
        outside = probabilities[labels != label, label].tolist()
        wins = sum((a > b) + (a == b) / 2 for a in inside for b in outside)
        areas.append(wins / (len(inside) * len(outside)))
    return sum(areas) / len(areas)


def distances_by_loops(features: Array, labels: Array) -> tuple[float, float, float]:
    """The three formulas of the paper's supplement, term by term."""
    classes = sorted(set(labels.tolist()))
    means, intra = {}, 0.0
    for c in classes:
        rows = features[labels == c].tolist()
        means[c] = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
        intra += sum(math.dist(f, means[c]) for f in rows) / len(rows) / len(classes)
    pairs = list(combinations(classes, 2))
    inter = sum(math.dist(means[a], means[b]) for a, b in pairs) / len(pairs)
    return intra, inter, inter / intra


def draw(
    seed: int, samples: int, classes: int, decimals: int = 12
) -> tuple[Array, Array]:
    """Probabilities that lean towards the labels; few decimals make ties."""
    rng = np.random.default_rng(seed)
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
def test_auc_equals_that_of_scikit_learn_and_of_all_pairs(
    samples: int, classes: int, decimals: int
) -> None:
    probabilities, labels = draw(0, samples, classes, decimals)
    got = macro_auc(probabilities, labels)
    assert got == pytest.approx(auc_by_pairs(probabilities, labels), abs=1e-12)
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert got == pytest.approx(expected, abs=1e-12)


def test_auc_leaves_out_a_class_without_samples() -> None:
    probabilities, labels = draw(0, 90, 3)
    some = labels != 1
    probabilities, labels = probabilities[some], labels[some]
    areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in (0, 2)]
    got = macro_auc(probabilities, labels)
    assert got == pytest.approx(sum(areas) / 2, abs=1e-12)


def test_auc_of_a_single_class_is_chance() -> None:
    probabilities, _ = draw(0, 5, 3)
    assert macro_auc(probabilities, np.full(5, 2)) == 0.5


def test_auc_of_equal_probabilities_is_one_half() -> None:
    """Every pair is a tie, of numbers or of nan."""
    labels = np.array([0, 1, 2, 2])
    for value in (1 / 3, math.nan):
        assert macro_auc(np.full((4, 3), value), labels) == 0.5


def test_distances_by_hand() -> None:
    """Three classes in the plane.

    Class 0: (0, 0), (6, 8): mean (3, 4), both at distance 5. Class 1: (3, 0) twice:
    mean (3, 0), distance 0. Class 2: (-1, 4), (1, 4), (0, 4): mean (0, 4), distances
    1, 1, 0, so 2/3. Intra = (5 + 0 + 2/3) / 3 = 17/9. The means are 4 (0-1), 3 (0-2)
    and 5 (1-2) apart: inter = 4. Separability = 36/17.
    """
    features = [[0, 0], [6, 8], [3, 0], [3, 0], [-1, 4], [1, 4], [0, 4]]
    labels = np.array([0, 0, 1, 1, 2, 2, 2])
    got = feature_distances(np.array(features, np.float32), labels)
    assert got == pytest.approx((17 / 9, 4, 36 / 17), abs=1e-12)


def test_distances_equal_the_formulas() -> None:
    """Class sizes differ and class 1 is absent: neither may change the weights."""
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 2, 3, 4, 5], 100)
    features = rng.normal(size=(100, 5)) + labels[:, None]
    got = feature_distances(features, labels)
    assert got == pytest.approx(distances_by_loops(features, labels), rel=1e-12)


def test_undefined_distances() -> None:
    """A single class has no pair; collapsed classes have no intra-class distance."""
    one_class = feature_distances(np.array([[0.0], [2.0]]), np.array([4, 4]))
    assert one_class.intra == 1
    assert math.isnan(one_class.inter)
    assert math.isnan(one_class.separability)
    points = feature_distances(np.array([[0.0], [2.0]]), np.array([0, 1]))
    assert points == (0, 2, math.inf)
    collapsed = feature_distances(np.ones((2, 1)), np.array([0, 1]))
    assert collapsed[:2] == (0, 0)
    assert math.isnan(collapsed.separability)
    broken = feature_distances(np.array([[math.inf], [0]]), np.array([0, 1]))
    assert not any(map(math.isfinite, broken))


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
