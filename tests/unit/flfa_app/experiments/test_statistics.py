from __future__ import annotations

import math

import pytest

from flfa_app.experiments.analysis.statistics import (
    paired_difference,
    sample_statistics,
)


def test_mean_and_sample_deviation() -> None:
    """1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, deviation √(14 / 2) = √7."""
    found = sample_statistics([1.0, 2.0, 6.0])
    assert found is not None
    assert found.mean == 3.0
    assert found.deviation == pytest.approx(math.sqrt(7))
    assert found.count == 3


def test_equal_values_do_not_deviate() -> None:
    found = sample_statistics([0.1, 0.1, 0.1])
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.deviation == pytest.approx(0.0, abs=1e-15)


def test_one_value_has_no_deviation() -> None:
    found = sample_statistics([5.0])
    assert found is not None
    assert (found.mean, found.deviation, found.count) == (5.0, None, 1)


def test_nothing_has_no_mean() -> None:
    assert sample_statistics([]) is None


def test_interval_of_three_pairs() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1; t(97.5 %, 2) is 4.3027 in any table.

    Half the interval is 4.3027 / √3 = 2.4842.
    """
    ours = {0: 11.0, 1: 22.0, 2: 33.0}
    base = {0: 10.0, 1: 20.0, 2: 30.0}
    found = paired_difference(ours, base)
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2 - 2.4842, abs=1e-4)
    assert found.high == pytest.approx(2 + 2.4842, abs=1e-4)
    assert found.count == 3


def test_interval_of_two_pairs() -> None:
    """Differences 0, 2: mean 1, deviation √2; t(97.5 %, 1) = tan(0.475 π) = 12.7062.

    Half the interval is 12.7062 · √2 / √2.
    """
    found = paired_difference({3: 5.0, 4: 9.0}, {3: 5.0, 4: 7.0})
    assert found is not None
    assert found.low == pytest.approx(1 - math.tan(0.475 * math.pi))
    assert found.high == pytest.approx(1 + math.tan(0.475 * math.pi))


def test_one_pair_has_no_interval() -> None:
    found = paired_difference({7: 3.0}, {7: 5.0})
    assert found is not None
    assert (found.mean, found.low, found.high, found.count) == (-2.0, None, None, 1)


def test_only_pairs_count() -> None:
    """Seeds 0 and 1 are alone: what is left is seed 2, with 3 - 1."""
    found = paired_difference({0: 100.0, 2: 3.0}, {1: -100.0, 2: 1.0})
    assert found is not None
    assert (found.mean, found.count) == (2.0, 1)


def test_no_pair() -> None:
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    assert paired_difference({}, {1: 1.0}) is None
