from __future__ import annotations

import math

import pytest

from flfa_app.experiments.analysis.statistics import (
    PairedDifference,
    SampleStatistics,
    paired_difference,
    sample_statistics,
)


def test_mean_and_sample_deviation() -> None:
    """1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, deviation √(14 / 2) = √7."""
    assert sample_statistics([1.0, 2.0, 6.0]) == SampleStatistics(3.0, math.sqrt(7), 3)
    assert sample_statistics([5.0]) == SampleStatistics(5.0, None, 1)
    assert sample_statistics([]) is None


@pytest.mark.parametrize(
    ("values", "baseline", "mean", "half", "count"),
    [
        # Differences 1, 2, 3: deviation 1, t(97.5 %, 2) = 4.3027, half 4.3027 / √3.
        ({0: 11, 1: 22, 2: 33}, {0: 10, 1: 20, 2: 30}, 2, 4.3027 / math.sqrt(3), 3),
        # 0 and 2: deviation √2, t(97.5 %, 1) = tan(0.475 π), half t · √2 / √2.
        ({3: 5, 4: 9}, {3: 5, 4: 7}, 1, math.tan(0.475 * math.pi), 2),
        # Equal differences; seeds 7 and 8 have no partner.
        ({0: 2, 1: 3, 7: 100}, {0: 1, 1: 2, 8: -100}, 1, 0, 2),
    ],
)
def test_confidence_intervals(
    values: dict[int, float],
    baseline: dict[int, float],
    mean: float,
    half: float,
    count: int,
) -> None:
    difference = paired_difference(values, baseline)
    assert difference is not None
    assert difference.mean == pytest.approx(mean)
    assert difference.low == pytest.approx(mean - half, abs=1e-4)
    assert difference.high == pytest.approx(mean + half, abs=1e-4)
    assert difference.count == count


def test_too_few_pairs() -> None:
    one = PairedDifference(-2.0, None, None, 1)
    assert paired_difference({7: 3.0, 0: 9.0}, {7: 5.0}) == one
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
