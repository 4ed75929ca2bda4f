"""The figures of the paper: pure functions of predictions, features and rounds.

Formulas, files and decisions: ``docs/metrics.md``. A *row* is one round of a run, a
line of ``metrics.jsonl``; null there is None here.
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

__all__ = [
    "FeatureDistances",
    "accuracy",
    "block_of",
    "cosine_histogram",
    "drift_reduction",
    "feature_distances",
    "first_cosines",
    "last_rounds_score",
    "macro_auc",
    "relative_time",
    "selection_frequency",
]

Rows = Sequence[Mapping[str, Any]]
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


def last_rounds_score(rows: Rows, key: str = "accuracy") -> float:
    """Return the mean of the last 10 % of the rounds, rounded up.

    Of the accuracy it is the paper's score. Rounds without an evaluation do not count;
    the last one has one.
    """
    last = [row[key] for row in rows[-math.ceil(len(rows) / 10) :] if key in row]
    return math.fsum(last) / len(last)


def drift_reduction(bp_rows: Rows, flfa_rows: Rows) -> dict[int, float]:
    """Return H of backpropagation minus H of FLFA, by round; above 0 FLFA drifts less.

    Parameters
    ----------
    bp_rows, flfa_rows : Sequence[Mapping[str, Any]]
        Two runs with the same seed. Rounds that only one of them has, or that have no
        drift in one of them, are left out.
    """
    bp, flfa = (
        {row["round"]: row["drift"] for row in rows if row["drift"] is not None}
        for rows in (bp_rows, flfa_rows)
    )
    return {i: bp[i] - flfa[i] for i in sorted(bp.keys() & flfa.keys())}


def relative_time(rows: Rows, base_rows: Rows) -> float:
    """Return how many times as long as in the base run a round takes.

    It is the median of the rounds both runs have, so that neither the start of the
    workers in round 1 nor a hiccup of the machine counts. The time is that of training
    and aggregation; the evaluation is the same whatever the method.
    """
    run, base = (
        {r["round"]: r["seconds"]["train"] + r["seconds"]["aggregate"] for r in given}
        for given in (rows, base_rows)
    )
    if not (common := run.keys() & base.keys()):
        raise ValueError("relative time: the two runs have no round in common")
    return float(median(run[i] / base[i] for i in common))


def selection_frequency(rows: Rows, block_of: Callable[[str], str]) -> dict[str, float]:
    """Return which share of all selected layers each block of the model has.

    Parameters
    ----------
    rows : Sequence[Mapping[str, Any]]
        The rounds of a run. Their scores name all layers, in the order of the model.
    block_of : Callable[[str], str]
        The block of a layer: :func:`block_of` with the name of the model.

    Returns
    -------
    dict[str, float]
        Shares that sum up to 1, of all blocks in the order of the model; empty if no
        layer was selected at all.
    """
    selected = Counter(block_of(layer) for row in rows for layer in row["selected"])
    layers = [x for key in ("scores", "selected") for row in rows for x in row[key]]
    blocks = dict.fromkeys(map(block_of, dict.fromkeys(layers)))
    total = selected.total()
    return {block: selected[block] / total for block in blocks} if total else {}


def first_cosines(rows: Rows) -> dict[str, float]:
    """Return the scores of round 1, without the layers that have none."""
    scores: Mapping[str, float | None] = next(
        (row["scores"] for row in rows if row["round"] == 1), {}
    )
    return {
        layer: score
        for layer, score in scores.items()
        if score is not None and math.isfinite(score)
    }


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
