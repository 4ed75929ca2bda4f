"""Statistics over seeds: mean, deviation, and the difference of paired runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class SampleStatistics:
    """Mean and sample standard deviation; a single value has no deviation."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference and its confidence interval; a single pair has no interval."""

    mean: float
    low: float | None
    high: float | None
    count: int


def sample_statistics(values: Collection[float]) -> SampleStatistics | None:
    """Return mean and standard deviation (divisor n - 1); None without any value."""
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return SampleStatistics(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return SampleStatistics(mean, math.sqrt(squares / (count - 1)), count)


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> PairedDifference | None:
    """Return the mean of ``values - baseline`` over the seeds that both have.

    Runs with the same seed share partition, participants, initial weights and batch
    order, so the effect of the seed cancels out. The interval is Student's: mean ±
    t(97.5 %, n - 1) · deviation / √n. It contains the true mean in 95 % of all
    repetitions if the differences are normal, which few seeds cannot show.
    """
    differences = [values[seed] - baseline[seed] for seed in values if seed in baseline]
    sample = sample_statistics(differences)
    if sample is None:
        return None
    if sample.deviation is None:
        return PairedDifference(sample.mean, None, None, 1)
    # stats.t.interval would be nan for a deviation of 0.
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, sample.count - 1))
    half = quantile * sample.deviation / math.sqrt(sample.count)
    mean, count = sample.mean, sample.count
    return PairedDifference(mean, mean - half, mean + half, count)
