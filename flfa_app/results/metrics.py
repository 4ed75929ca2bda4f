"""The figures of the paper: pure functions of predictions, features and rounds.

Formulas, files and decisions: ``docs/metrics.md``. Rounds are given as
:class:`~flfa_app.results.records.RoundRecord`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flfa_app.models.blocks import block_of
from flfa_app.results.records import Evaluation, RoundRecord

__all__ = [
    "FeatureDistances",
    "accuracy",
    "block_of",
    "cosine_histogram",
    "drift_reduction",
    "extra_accuracy",
    "feature_distances",
    "first_cosines",
    "macro_auc",
    "mean_of_last_rounds",
    "relative_time",
    "selection_frequency",
]

Records = Sequence[RoundRecord]
Array = NDArray[Any]

BINS_PER_UNIT = 20  # of a histogram of cosines


def accuracy(scores: Array, labels: Array) -> float:
    """Return the share of samples whose own class has the highest score.

    Parameters
    ----------
    scores : ndarray of shape (samples, classes)
        Logits or probabilities; of equal ones the first class counts.
    labels : ndarray of shape (samples,)
        The class of each sample.
    """
    return int((scores.argmax(1) == labels).sum()) / len(labels)


def macro_auc(probabilities: Array, labels: Array) -> float:
    """Return the area under the ROC curve, one class against the rest, averaged.

    The area of a class is the share of pairs (a sample of it, another sample) in which
    the first has the higher probability of that class; a tie counts half. Where
    scikit-learn defines it, this is ``roc_auc_score(labels, probabilities,
    multi_class="ovr", average="macro")``.

    Parameters
    ----------
    probabilities : ndarray of shape (samples, classes)
        Any scores that are comparable between samples; ``nan`` is above all else.
    labels : ndarray of shape (samples,)
        The class of each sample. A class that no sample has does not count; if all
        samples have the same there is nothing to compare: 0.5, as by chance.
    """
    areas = []
    for label in np.unique(labels):
        scores = probabilities[:, label]
        own = scores[labels == label]
        if (others := len(labels) - len(own)) == 0:
            return 0.5
        # Twice the sum of the ranks, so that the half ranks of ties are whole numbers;
        # from it go the pairs inside the class.
        ordered = np.sort(scores)
        below = np.searchsorted(ordered, own, "left")
        up_to = np.searchsorted(ordered, own, "right")
        twice_the_ranks = int((below + up_to + 1).sum())
        wins = (twice_the_ranks - len(own) * (len(own) + 1)) / 2
        areas.append(wins / (len(own) * others))
    return math.fsum(areas) / len(areas)


class FeatureDistances(NamedTuple):
    """How near the features of a class are to each other, and to those of others."""

    intra: float
    inter: float
    separability: float


def feature_distances(features: Array, labels: Array) -> FeatureDistances:
    r"""Return the paper's intra-class and inter-class distance and their ratio.

    With :math:`\mu_c` the mean feature of class *c*: intra is the mean over the classes
    of the mean :math:`|f_i - \mu_c|` of their samples; inter is the mean of
    :math:`|\mu_c - \mu_{c'}|` over all pairs of classes; separability is inter / intra.
    (The paper calls them variances; nothing in them is squared.)

    Parameters
    ----------
    features : ndarray of shape (samples, dimensions)
        The inputs of the classifier. Memory for one class more is needed, in float64.
    labels : ndarray of shape (samples,)
        The class of each sample; a class that no sample has does not count.

    Returns
    -------
    FeatureDistances
        ``inter`` is ``nan`` for a single class. ``separability`` is infinite if every
        sample is at its class's mean, ``nan`` if moreover all means are the same.
    """
    means, spreads = [], []
    # Features that are not finite have distances that are not; no need to warn.
    with np.errstate(invalid="ignore"):
        for label in np.unique(labels):
            own = features[labels == label].astype(np.float64)
            mean = own.mean(0)
            own -= mean
            spreads.append(np.linalg.norm(own, axis=1).mean())
            means.append(mean)
        centres = np.array(means)
        gaps = [
            np.linalg.norm(centres[i + 1 :] - centre, axis=1)
            for i, centre in enumerate(centres[:-1])
        ]
    intra = float(np.mean(spreads))
    inter = float(np.mean(np.concatenate(gaps))) if gaps else math.nan
    if intra > 0:
        return FeatureDistances(intra, inter, inter / intra)
    return FeatureDistances(intra, inter, math.inf if inter > 0 else math.nan)


def mean_of_last_rounds(
    records: Records, value_of: Callable[[Evaluation], float | None]
) -> float:
    """Return the mean of a value over the last 10 % of the rounds, rounded up.

    The mean of the accuracy is the paper's score. Rounds without an evaluation, or
    whose evaluation has no such value, do not count; the last round always has one.
    """
    last = [r.evaluation for r in records[-math.ceil(len(records) / 10) :]]
    values = [value_of(evaluation) for evaluation in last if evaluation is not None]
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured)


def extra_accuracy(records: Records) -> dict[str, float]:
    """Return the mean accuracy on each further test set over the last rounds."""
    last = records[-1].evaluation
    names = () if last is None else last.extra_accuracy

    def mean(name: str) -> float:
        return mean_of_last_rounds(records, lambda e: e.extra_accuracy.get(name))

    return {name: mean(name) for name in names}


def drift_reduction(bp_records: Records, flfa_records: Records) -> dict[int, float]:
    """Return H of backpropagation minus H of FLFA, by round; above 0 FLFA drifts less.

    Parameters
    ----------
    bp_records, flfa_records : Sequence[RoundRecord]
        Two runs with the same seed. Rounds that only one of them has, or that have no
        drift in one of them, are left out.
    """
    bp, flfa = (
        {r.server_round: r.drift for r in records if math.isfinite(r.drift)}
        for records in (bp_records, flfa_records)
    )
    return {i: bp[i] - flfa[i] for i in sorted(bp.keys() & flfa.keys())}


def relative_time(records: Records, base_records: Records) -> float:
    """Return how many times as long as in the base run a round takes.

    It is the median of the rounds both runs have, so that neither the start of the
    workers in round 1 nor a hiccup of the machine counts. The time is that of training
    and aggregation; the evaluation is the same whatever the method.
    """
    run, base = (
        {r.server_round: r.timing.without_evaluation for r in given}
        for given in (records, base_records)
    )
    if not (common := run.keys() & base.keys()):
        raise ValueError("relative time: the two runs have no round in common")
    return float(median(run[i] / base[i] for i in common))


def selection_frequency(
    records: Records, block_of: Callable[[str], str]
) -> dict[str, float]:
    """Return which share of all selected layers each block of the model has.

    Parameters
    ----------
    records : Sequence[RoundRecord]
        The rounds of a run. Their scores name all layers, in the order of the model.
    block_of : Callable[[str], str]
        The block of a layer: :func:`block_of` with the name of the model.

    Returns
    -------
    dict[str, float]
        Shares that sum up to 1, of all blocks in the order of the model; empty if no
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
    scores: Mapping[str, float] = next(
        (record.scores for record in records if record.server_round == 1), {}
    )
    return {layer: score for layer, score in scores.items() if math.isfinite(score)}


def cosine_histogram(
    cosines: Sequence[float],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how many cosines are in each bin, and the edges of the bins.

    The bins are 0.05 wide and lie on a grid, so that those of two runs are the same;
    empty ones at both ends are left out. A cosine on an edge is in the bin above it.
    """
    edges = np.arange(-BINS_PER_UNIT, BINS_PER_UNIT + 1) / BINS_PER_UNIT
    counts, _ = np.histogram(cosines, edges)
    filled = np.flatnonzero(counts)
    if not filled.size:
        return np.zeros(0, np.int64), np.zeros(0)
    first, last = filled[0], filled[-1]
    return counts[first : last + 1].astype(np.int64), edges[first : last + 2]
