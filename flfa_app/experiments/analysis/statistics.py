"""What a few seeds say: mean, deviation, and the difference of paired runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from scipy.stats import t as student_t

__all__ = ["Difference", "Estimate", "estimate", "paired_difference"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; one seed alone has no deviation."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """A mean of differences and its confidence interval; one pair alone has none."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Collection[float]) -> Estimate | None:
    """Return mean and sample standard deviation (divisor n - 1); None of nothing."""
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Estimate(mean, math.sqrt(squares / (count - 1)), count)


def paired_difference(
    ours: Mapping[int, float], base: Mapping[int, float]
) -> Difference | None:
    """Return the mean of ``ours - base`` over the seeds that both have.

    Runs with the same seed share partition, participants, initial weights and batch
    order, so what a seed adds to both falls out of the difference. The interval is
    Student's: mean ± t(97.5 %, n - 1) · deviation / √n. It holds the true mean in 95 %
    of all repetitions if the differences are normal, which few seeds cannot show.
    """
    pairs = [ours[seed] - base[seed] for seed in ours if seed in base]
    found = estimate(pairs)
    if found is None:
        return None
    if found.deviation is None:
        return Difference(found.mean, None, None, 1)
    quantile = float(student_t.ppf((1 + CONFIDENCE) / 2, found.count - 1))
    half = quantile * found.deviation / math.sqrt(found.count)
    return Difference(found.mean, found.mean - half, found.mean + half, found.count)
