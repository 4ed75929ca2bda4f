"""Metrics of recorded rounds: of one run, and of pairs of runs.

Formulas and decisions: ``docs/metrics.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from flfa_app.results.records import Evaluation, RoundRecord

Records = Sequence[RoundRecord]

BINS_PER_UNIT = 20  # of a histogram of cosines


def accuracies(records: Iterable[RoundRecord]) -> dict[int, float]:
    """Return the accuracy after each round that was evaluated."""
    return {r.server_round: r.evaluation.accuracy for r in records if r.evaluation}


def mean_of_last_rounds(
    records: Records, value_of: Callable[[Evaluation], float | None]
) -> float:
    """Return the mean of a value over the last 10 % of the rounds, rounded up.

    The mean of the accuracy is the paper's score. Rounds without an evaluation, or
    whose evaluation has no such value, do not count; without any value it is nan.
    """
    last = [r.evaluation for r in records[-math.ceil(len(records) / 10) :]]
    values = [value_of(evaluation) for evaluation in last if evaluation is not None]
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured) if measured else math.nan


def selection_frequency(
    records: Records, block_of: Callable[[str], str]
) -> dict[str, float]:
    """Return the share of all selected layers that each block of the model has.

    The shares of all blocks sum to 1, in the order of the model. There are none if no
    layer was selected at all.
    """
    selected = [layer for record in records for layer in record.selected]
    scored = [layer for record in records for layer in record.scores]
    blocks = dict.fromkeys(map(block_of, dict.fromkeys([*scored, *selected])))
    counts = Counter(map(block_of, selected))
    total = counts.total()
    return {block: counts[block] / total for block in blocks} if total else {}


def first_cosines(records: Records) -> dict[str, float]:
    """Return the scores of round 1, without the layers that have none."""
    first = [x for r in records if r.server_round == 1 for x in r.scores.items()]
    return {layer: score for layer, score in first if math.isfinite(score)}


def cosine_histogram(
    cosines: Sequence[float],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the number of cosines in each bin, and the edges of the bins.

    The bins are 0.05 wide and aligned to multiples of 0.05, so that the histograms of
    two runs are comparable; empty bins at both ends are left out. A cosine on an edge
    belongs to the bin above.
    """
    edges = np.arange(-BINS_PER_UNIT, BINS_PER_UNIT + 1) / BINS_PER_UNIT
    counts, _ = np.histogram(cosines, edges)
    filled = np.flatnonzero(counts)
    first, last = filled[0], filled[-1]
    return counts[first : last + 1].astype(np.int64), edges[first : last + 2]


def drift_reduction(bp_records: Records, flfa_records: Records) -> dict[int, float]:
    """Return H of backpropagation minus H of FLFA, by round; above 0 FLFA drifts less.

    The two runs have the same seed. Rounds without a drift in both are left out.
    """
    bp, flfa = (
        {r.server_round: r.drift for r in records if math.isfinite(r.drift)}
        for records in (bp_records, flfa_records)
    )
    return {i: bp[i] - flfa[i] for i in sorted(bp.keys() & flfa.keys())}


def relative_time(records: Records, base_records: Records) -> float:
    """Return the time of a round relative to that of the base run.

    It is the median over the rounds that both runs have, so that neither the start of
    the workers in round 1 nor a hiccup of the machine counts. Only training and
    aggregation count; the evaluation does not depend on the method.
    """
    run, base = (
        {r.server_round: r.timing.without_evaluation for r in given}
        for given in (records, base_records)
    )
    if not (common := run.keys() & base.keys()):
        raise ValueError("relative time: the two runs have no round in common")
    return float(median(run[i] / base[i] for i in common))
