"""Metrics of a model's predictions and features on a test set.

Formulas and decisions: ``docs/metrics.md``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Predictions(NamedTuple):
    """What a model predicts for a test set, one row per sample."""

    logits: Array
    probabilities: Array
    """Softmax of the logits in float64."""
    features: Array
    """The inputs of the classifier, the model's last layer."""
    labels: Array


def accuracy(scores: Array, labels: Array) -> float:
    """Return the share of samples whose true class has the highest score.

    ``scores`` has a row per sample: logits or probabilities. Of equal scores the first
    class counts.
    """
    return int((scores.argmax(1) == labels).sum()) / len(labels)


def macro_auc(probabilities: Array, labels: Array) -> float:
    """Return the area under the ROC curve, one class against the rest, averaged.

    The area of a class is the share of pairs (a sample of the class, another sample)
    in which the first sample has the higher probability of that class; a tie counts
    half, and ``nan`` ranks highest. A class without samples does not count; with only
    one class there is nothing to compare and the result is 0.5.

    Where scikit-learn defines it, the result is ``roc_auc_score(labels, probabilities,
    multi_class="ovr", average="macro")`` up to the last bit. scikit-learn is not used
    here because it takes 7 to 90 times as long, adds seconds of import time, and
    returns nan or raises for absent classes and for nan.
    """
    areas = []
    for label in np.unique(labels):
        scores = probabilities[:, label]
        positives = scores[labels == label]
        if (negatives := len(labels) - len(positives)) == 0:
            return 0.5
        # The rank sum is doubled so that the half ranks of ties are whole numbers.
        # Pairs within the class are subtracted.
        ordered = np.sort(scores)
        below = np.searchsorted(ordered, positives, "left")
        up_to = np.searchsorted(ordered, positives, "right")
        twice_the_ranks = int((below + up_to + 1).sum())
        wins = (twice_the_ranks - len(positives) * (len(positives) + 1)) / 2
        areas.append(wins / (len(positives) * negatives))
    return math.fsum(areas) / len(areas)


class FeatureDistances(NamedTuple):
    """Mean distances of features within and between classes, and their ratio."""

    intra: float
    inter: float
    separability: float


def feature_distances(features: Array, labels: Array) -> FeatureDistances:
    r"""Return the paper's intra-class and inter-class distance and their ratio.

    With :math:`\mu_c` the mean feature of class *c*: intra is the mean over the classes
    of the mean :math:`|f_i - \mu_c|` of their samples; inter is the mean of
    :math:`|\mu_c - \mu_{c'}|` over all pairs of classes; separability is inter / intra.
    (The paper calls them variances, but its formulas square nothing.)

    A class without samples does not count. ``inter`` is ``nan`` for a single class.
    ``separability`` is infinite if every sample is at the mean of its class, ``nan`` if
    all means are equal as well. One class at a time is copied to float64.
    """
    means, spreads = [], []
    # Non-finite features have non-finite distances; NumPy need not warn about them.
    with np.errstate(invalid="ignore"):
        for label in np.unique(labels):
            offsets = features[labels == label].astype(np.float64)
            mean = offsets.mean(0)
            offsets -= mean
            spreads.append(np.linalg.norm(offsets, axis=1).mean())
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
