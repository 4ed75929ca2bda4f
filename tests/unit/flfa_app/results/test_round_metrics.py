"""Metrics of recorded rounds against values derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flfa_app.results.records import Evaluation, RoundRecord, Timing
from flfa_app.results.round_metrics import (
    cosine_histogram,
    drift_reduction,
    first_cosines,
    mean_of_last_rounds,
    relative_time,
    selection_frequency,
)


@pytest.mark.parametrize(("rounds", "last"), [(1, 1), (10, 1), (11, 2), (30, 3)])
def test_score_is_the_mean_of_the_last_tenth(rounds: int, last: int) -> None:
    """Values 1..n: the last k have the mean n - (k - 1) / 2."""
    records = [RoundRecord(i, Evaluation(i)) for i in range(1, rounds + 1)]
    assert mean_of_last_rounds(records, lambda e: e.accuracy) == rounds - (last - 1) / 2


def test_rounds_without_the_value_do_not_count_for_the_mean() -> None:
    """Of the last three rounds only the second has the value."""
    records = [RoundRecord(i, Evaluation(0.0)) for i in range(1, 29)]
    records += [RoundRecord(29, Evaluation(0.0, further={"f1": 0.5})), RoundRecord(30)]
    assert mean_of_last_rounds(records, lambda e: e.further.get("f1")) == 0.5
    assert math.isnan(mean_of_last_rounds(records, lambda e: e.further.get("f2")))


def test_drift_reduction_pairs_by_round() -> None:
    """Only rounds 2 and 4 have a drift in both: 2 - 1.5 and 1 - 1.25."""
    bp = [(1, 3.0), (2, 2.0), (3, math.nan), (4, 1.0)]
    flfa = [(4, 1.25), (3, 1.0), (2, 1.5), (5, 1.0)]
    bp_records, flfa_records = (
        [RoundRecord(i, drift=drift) for i, drift in run] for run in (bp, flfa)
    )
    assert drift_reduction(bp_records, flfa_records) == {2: 0.5, 4: -0.25}


def timed(*seconds: float) -> list[RoundRecord]:
    """Rounds with the seconds of training; aggregation takes 1, evaluation 100."""
    return [RoundRecord(i, timing=Timing(t, 1, 100)) for i, t in enumerate(seconds, 1)]


def test_relative_time_is_the_median_of_the_rounds() -> None:
    """Ratios: 30/10 (start-up), 4/2, 5/2, 3/2; the base has no round 5.

    The median of 3, 2, 2.5, 1.5 is (2 + 2.5) / 2.
    """
    run, base = timed(29, 3, 4, 2, 99), timed(9, 1, 1, 1)
    assert relative_time(run, base) == 2.25
    assert relative_time(base, base) == 1
    with pytest.raises(ValueError, match="no round in common"):
        relative_time(base, [])


def test_selection_frequency_counts_layers_by_block() -> None:
    """Five selections: a.0 twice and a.1 once, c.0 twice; b is never selected."""
    scores = {"a.0": 0.1, "a.1": 0.2, "b.0": 0.3, "c.0": math.nan}
    selected = [(), ("c.0", "a.0"), ("a.1",), ("a.0", "c.0")]
    records = [RoundRecord(1, selected=names, scores=scores) for names in selected]
    got = selection_frequency(records, lambda layer: layer[0])
    assert got == {"a": 3 / 5, "b": 0, "c": 2 / 5}
    assert list(got) == ["a", "b", "c"]
    assert selection_frequency(records[:1], str) == {}


def test_first_cosines_are_those_of_round_1_that_exist() -> None:
    scores = {"a": 0.5, "b": math.nan, "c": math.inf, "d": -1.0}
    records = [RoundRecord(2, scores={"a": 0.1}), RoundRecord(1, scores=scores)]
    assert first_cosines(records) == {"a": 0.5, "d": -1.0}
    assert first_cosines([]) == {}


def test_histogram_by_hand() -> None:
    """Bins of 0.05 from 0.10 to 0.30; 0.15 is on an edge and counts above it."""
    counts, edges = cosine_histogram([0.12, 0.15, 0.19, 0.29])
    np.testing.assert_array_equal(counts, [1, 2, 0, 1])
    np.testing.assert_allclose(edges, [0.10, 0.15, 0.20, 0.25, 0.30], atol=1e-15)


@pytest.mark.parametrize("values", [[1.0], [1.0, -1.0], [0.0, 1e-300]])
def test_histogram_loses_no_value(values: list[float]) -> None:
    counts, edges = cosine_histogram(values)
    assert counts.sum() == len(values)
    assert len(edges) == len(counts) + 1
    assert all(counts[[0, -1]] > 0)
