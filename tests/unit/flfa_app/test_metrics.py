"""The figures, against values derived by hand, scikit-learn and plain loops."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, roc_auc_score

from flfa_app.results import metrics
from flfa_app.results.records import Evaluation, RoundRecord, Timing

Array = NDArray[Any]


def auc_by_pairs(probabilities: Array, labels: Array) -> float:
    """The definition: every pair of a sample of the class and another one."""
    areas = []
    for label in set(labels.tolist()):
        own = [
            row[label]
            for row, y in zip(probabilities, labels, strict=True)
            if y == label
        ]
        rest = [
            row[label]
            for row, y in zip(probabilities, labels, strict=True)
            if y != label
        ]
        wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in own for b in rest)
        areas.append(wins / (len(own) * len(rest)))
    return sum(areas) / len(areas)


def distances_by_loops(features: Array, labels: Array) -> tuple[float, float, float]:
    """The three formulas of the paper's supplement, term by term."""
    classes = sorted(set(labels.tolist()))
    means, intra = {}, 0.0
    for c in classes:
        own = [f for f, y in zip(features, labels, strict=True) if y == c]
        means[c] = [math.fsum(column) / len(own) for column in zip(*own, strict=True)]
        intra += sum(math.dist(f, means[c]) for f in own) / len(own) / len(classes)
    pairs = list(combinations(classes, 2))
    inter = sum(math.dist(means[a], means[b]) for a, b in pairs) / len(pairs)
    return intra, inter, inter / intra


def draw(
    seed: int, samples: int, classes: int, decimals: int = 12
) -> tuple[Array, Array]:
    """Probabilities that know a little of the labels; few decimals make ties."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    logits = rng.normal(size=(samples, classes)) + np.eye(classes)[labels]
    odds = np.exp(logits).round(decimals) + 10.0**-decimals
    return odds / odds.sum(1, keepdims=True), labels


def test_accuracy_by_hand() -> None:
    """The first row is right, the second wrong; the tie goes to the first class."""
    scores = np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
    assert metrics.accuracy(scores, np.array([1, 1, 0])) == 2 / 3


def test_accuracy_is_scikit_learns() -> None:
    scores, labels = draw(0, 200, 5)
    expected = accuracy_score(labels, scores.argmax(1))
    assert metrics.accuracy(scores, labels) == expected


def test_auc_by_hand() -> None:
    """Class 0 owns samples 0 and 1, with 0.6 and 0.3 against 0.3 and 0.1.

    Pairs: 0.6 wins twice, 0.3 ties with 0.3 (half) and wins over 0.1: 3.5 of 4. Class
    1 owns sample 2: its 0.7 wins over 0.4 and 0.1 and ties with 0.7: 2.5 of 3. Class 2
    owns sample 3: 0.8 wins over 0, 0 and 0: 3 of 3.
    """
    probabilities = np.array(
        [[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.3, 0.7, 0.0], [0.1, 0.1, 0.8]]
    )
    expected = (3.5 / 4 + 2.5 / 3 + 1) / 3
    got = metrics.macro_auc(probabilities, np.array([0, 0, 1, 2]))
    assert got == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("decimals", [12, 1, 0])
@pytest.mark.parametrize(("samples", "classes"), [(3, 3), (60, 3), (500, 10)])
def test_auc_is_scikit_learns_and_that_of_all_pairs(
    samples: int, classes: int, decimals: int
) -> None:
    for seed in range(3):
        probabilities, labels = draw(seed, samples, classes, decimals)
        got = metrics.macro_auc(probabilities, labels)
        assert got == pytest.approx(auc_by_pairs(probabilities, labels), abs=1e-12)
        expected = roc_auc_score(
            labels, probabilities, multi_class="ovr", average="macro"
        )
        assert got == pytest.approx(expected, abs=1e-12)


def test_auc_of_two_classes_is_the_usual_one() -> None:
    """With two classes both areas are that of the one curve there is."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 100)
    second = rng.integers(0, 8, 100) / 8  # eighths: 1 - p is exact, ties stay ties
    got = metrics.macro_auc(np.stack([1 - second, second], 1), labels)
    assert got == pytest.approx(roc_auc_score(labels, second), abs=1e-12)


def test_auc_leaves_out_a_class_without_samples() -> None:
    probabilities, labels = draw(0, 90, 3)
    some = labels != 1
    probabilities, labels = probabilities[some], labels[some]
    areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in (0, 2)]
    got = metrics.macro_auc(probabilities, labels)
    assert got == pytest.approx(sum(areas) / 2, abs=1e-12)


def test_auc_of_a_single_class_is_chance() -> None:
    probabilities, _ = draw(0, 5, 3)
    assert metrics.macro_auc(probabilities, np.full(5, 2)) == 0.5


def test_auc_of_a_model_that_says_nothing() -> None:
    """All ties, of numbers or of nan: half of all pairs."""
    labels = np.array([0, 1, 2, 2])
    for value in (1 / 3, math.nan):
        assert metrics.macro_auc(np.full((4, 3), value), labels) == 0.5


def test_auc_does_not_depend_on_the_order_of_the_samples() -> None:
    probabilities, labels = draw(1, 300, 4, decimals=1)
    order = np.random.default_rng(2).permutation(300)
    shuffled = metrics.macro_auc(probabilities[order], labels[order])
    assert shuffled == metrics.macro_auc(probabilities, labels)


def test_distances_by_hand() -> None:
    """Three classes in the plane.

    Class 0: (0, 0), (6, 8): mean (3, 4), both at distance 5. Class 1: (3, 0) twice:
    mean (3, 0), distance 0. Class 2: (-1, 4), (1, 4), (0, 4): mean (0, 4), distances
    1, 1, 0, so 2/3. Intra = (5 + 0 + 2/3) / 3 = 17/9. The means are 4 (0-1), 3 (0-2)
    and 5 (1-2) apart: inter = 4. Separability = 36/17.
    """
    features = [[0, 0], [6, 8], [3, 0], [3, 0], [-1, 4], [1, 4], [0, 4]]
    labels = np.array([0, 0, 1, 1, 2, 2, 2])
    got = metrics.feature_distances(np.array(features, np.float32), labels)
    assert got == pytest.approx((17 / 9, 4, 36 / 17), abs=1e-12)


@pytest.mark.parametrize(("samples", "classes"), [(10, 2), (200, 7)])
def test_distances_are_those_of_the_formulas(samples: int, classes: int) -> None:
    rng = np.random.default_rng(samples)
    # Class sizes differ, and class 1 is not there: neither may weigh the means.
    labels = rng.choice([c for c in range(classes + 1) if c != 1], samples)
    features = rng.normal(size=(samples, 5)) + labels[:, None]
    got = metrics.feature_distances(features, labels)
    assert got == pytest.approx(distances_by_loops(features, labels), rel=1e-12)


def test_distances_scale_with_the_features_and_do_not_see_a_shift() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(50, 3)), rng.integers(0, 4, 50)
    one = metrics.feature_distances(features, labels)
    other = metrics.feature_distances(3 * features + 7, labels)
    assert other == pytest.approx((3 * one.intra, 3 * one.inter, one.separability))


def test_distances_that_are_not_defined() -> None:
    """One class has no pair; collapsed classes have no intra-class distance."""
    one_class = metrics.feature_distances(np.array([[0.0], [2.0]]), np.array([4, 4]))
    assert one_class.intra == 1
    assert math.isnan(one_class.inter)
    assert math.isnan(one_class.separability)
    points = metrics.feature_distances(np.array([[0.0], [2.0]]), np.array([0, 1]))
    assert points == (0, 2, math.inf)
    collapsed = metrics.feature_distances(np.ones((2, 1)), np.array([0, 1]))
    assert collapsed[:2] == (0, 0)
    assert math.isnan(collapsed.separability)
    broken = metrics.feature_distances(np.array([[math.inf], [0]]), np.array([0, 1]))
    assert not any(map(math.isfinite, broken))


@pytest.mark.parametrize(
    ("rounds", "last"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (100, 10)]
)
def test_score_is_the_mean_of_the_last_tenth(rounds: int, last: int) -> None:
    """Values 1..n: the last k have the mean n - (k - 1) / 2."""
    records = [
        RoundRecord(i, Evaluation(accuracy=i, auc=-i)) for i in range(1, rounds + 1)
    ]
    mean = metrics.mean_of_last_rounds
    assert mean(records, lambda e: e.accuracy) == rounds - (last - 1) / 2
    assert mean(records, lambda e: e.auc) == (last - 1) / 2 - rounds


def test_drift_reduction_pairs_by_round() -> None:
    """Only rounds 2 and 4 have a drift in both: 2 - 1.5 and 1 - 1.25."""
    bp = [(1, 3.0), (2, 2.0), (3, math.nan), (4, 1.0)]
    flfa = [(4, 1.25), (3, 1.0), (2, 1.5), (5, 1.0)]
    bp_records, flfa_records = (
        [RoundRecord(i, drift=drift) for i, drift in run] for run in (bp, flfa)
    )
    assert metrics.drift_reduction(bp_records, flfa_records) == {2: 0.5, 4: -0.25}


def timed(*seconds: tuple[float, float]) -> list[RoundRecord]:
    """Rounds with the seconds of training and aggregation; evaluation takes 100."""
    return [
        RoundRecord(i, timing=Timing(train=t, aggregate=a, evaluate=100.0))
        for i, (t, a) in enumerate(seconds, 1)
    ]


def test_relative_time_is_the_median_of_the_rounds() -> None:
    """Ratios: 30/10 (start), 4/2, 5/2, 3/2; round 5 has no partner.

    The median of 3, 2, 2.5, 1.5 is (2 + 2.5) / 2.
    """
    run = timed((29, 1), (3, 1), (4, 1), (2, 1), (99, 1))
    base = timed((9, 1), (1, 1), (1, 1), (1, 1))
    assert metrics.relative_time(run, base) == 2.25
    assert metrics.relative_time(base, base) == 1


def test_relative_time_needs_a_round_in_common() -> None:
    with pytest.raises(ValueError, match="no round in common"):
        metrics.relative_time(timed((1, 1)), [])


def test_selection_frequency_counts_layers_by_block() -> None:
    """Five selections: a.0 twice and a.1 once, c.0 twice; b is never selected."""
    scores = {"a.0": 0.1, "a.1": 0.2, "b.0": 0.3, "c.0": math.nan}
    selected = [(), ("c.0", "a.0"), ("a.1",), ("a.0", "c.0")]
    records = [RoundRecord(1, selected=names, scores=scores) for names in selected]
    got = metrics.selection_frequency(records, lambda layer: layer[0])
    assert got == {"a": 3 / 5, "b": 0, "c": 2 / 5}
    assert list(got) == ["a", "b", "c"]


def test_selection_frequency_without_a_selection() -> None:
    records = [RoundRecord(1, scores={"a": 0.5})]
    assert metrics.selection_frequency(records, str) == {}


def test_first_cosines_are_those_of_round_1_that_exist() -> None:
    scores = {"a": 0.5, "b": math.nan, "c": math.inf, "d": -1.0}
    records = [RoundRecord(2, scores={"a": 0.1}), RoundRecord(1, scores=scores)]
    assert metrics.first_cosines(records) == {"a": 0.5, "d": -1.0}
    assert metrics.first_cosines([]) == {}


def test_histogram_by_hand() -> None:
    """Bins of 0.05 from 0.10 to 0.30; 0.15 is on an edge and goes up."""
    counts, edges = metrics.cosine_histogram([0.12, 0.15, 0.19, 0.29])
    np.testing.assert_array_equal(counts, [1, 2, 0, 1])
    np.testing.assert_allclose(edges, [0.10, 0.15, 0.20, 0.25, 0.30], atol=1e-15)


@pytest.mark.parametrize("values", [[1.0], [-1.0], [1.0, -1.0], [0.0, 1e-300]])
def test_histogram_loses_no_value(values: list[float]) -> None:
    counts, edges = metrics.cosine_histogram(values)
    assert counts.sum() == len(values)
    assert len(edges) == len(counts) + 1
    assert counts[0] > 0
    assert counts[-1] > 0


def test_histogram_of_nothing() -> None:
    counts, edges = metrics.cosine_histogram([])
    assert counts.size == edges.size == 0
