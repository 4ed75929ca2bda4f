"""From scores to layers: one pure function a rule, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

__all__ = ["RULES", "Choice", "Scores", "skewness"]

Scores: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """What a rule may look at besides the scores of the round.

    Parameters
    ----------
    num_layers : int
        How many layers to choose.
    server_round : int
        The round that has just been scored.
    first_scores : Mapping[str, float]
        The scores of the first scored round.
    fixed_layers : tuple[str, ...]
        The layers of the rule ``fixed``.
    seed : int
        Of the rule ``random``.
    """

    num_layers: int
    server_round: int = 1
    first_scores: Scores = field(default_factory=dict)
    fixed_layers: tuple[str, ...] = ()
    seed: int = 0


def lowest(scores: Scores, choice: Choice) -> list[str]:
    """Pick the layers the clients agree on least; of equal ones the first.

    Layers without a score (``nan``) are passed over.
    """
    # Equal up to rounding: with one client, say, every layer has the score 1.
    scored = {k: round(score, 12) for k, score in scores.items() if score == score}
    return sorted(scored, key=scored.__getitem__)[: choice.num_layers]


def highest(scores: Scores, choice: Choice) -> list[str]:
    """Pick the layers the clients agree on most; of equal ones the first."""
    return lowest({name: -score for name, score in scores.items()}, choice)


def auto(scores: Scores, choice: Choice) -> list[str]:
    """Pick the lowest if most layers began at the low end, else the highest."""
    low_end = skewness(choice.first_scores.values()) > 0
    return lowest(scores, choice) if low_end else highest(scores, choice)


def fixed(scores: Scores, choice: Choice) -> list[str]:
    """Pick the given layers, whatever their scores."""
    return list(choice.fixed_layers)


def random(scores: Scores, choice: Choice) -> list[str]:
    """Draw layers: the same for the same seed and round, whatever their scores."""
    names = list(scores)
    rng = np.random.default_rng([choice.seed, choice.server_round])
    return [names[i] for i in rng.permutation(len(names))[: choice.num_layers]]


def none(scores: Scores, choice: Choice) -> list[str]:
    """Pick no layer: plain backpropagation."""
    return []


RULES: dict[str, Callable[[Scores, Choice], list[str]]] = {
    rule.__name__: rule for rule in (lowest, highest, auto, fixed, random, none)
}


def skewness(values: Iterable[float]) -> float:
    """Return the sample skewness of the finite values; 0 when they do not differ.

    Above 0 most values are at the low end, with a tail to the right.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    if finite.size == 0 or np.ptp(finite) == 0:
        return 0.0
    apart = finite - finite.mean()
    skew = float((apart**3).mean() / (apart**2).mean() ** 1.5)
    # Two values have none, which rounding must not turn into a side.
    return skew if abs(skew) > 1e-9 else 0.0
