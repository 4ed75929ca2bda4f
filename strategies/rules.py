"""The rules that choose layers by their scores, and the checks of their arguments."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

__all__ = [
    "RULES",
    "RuleContext",
    "Scores",
    "check_arguments",
    "check_names",
    "skewness",
]

Scores: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class RuleContext:
    """What a rule takes into account besides the scores of the round."""

    num_layers: int
    server_round: int = 1
    """The round that the scores are of."""
    first_scores: Scores = field(default_factory=dict)
    """The scores of the first scored round, for the rule ``auto``."""
    fixed_layers: tuple[str, ...] = ()
    seed: int = 0
    """The seed of the rule ``random``."""


def lowest(scores: Scores, context: RuleContext) -> list[str]:
    """Choose the layers with the lowest scores: the clients agree least on them.

    Of layers with equal scores the first is chosen. Layers without a score (``nan``)
    are never chosen.
    """
    # Rounded, so that a rounding error does not decide: with one client, for example,
    # every layer has the score 1.
    scored = {k: round(score, 12) for k, score in scores.items() if score == score}
    return sorted(scored, key=scored.__getitem__)[: context.num_layers]


def highest(scores: Scores, context: RuleContext) -> list[str]:
    """Choose the layers with the highest scores; of equal scores the first."""
    return lowest({name: -score for name, score in scores.items()}, context)


def auto(scores: Scores, context: RuleContext) -> list[str]:
    """Apply ``lowest`` if the first scores are skewed to the low end, else ``highest``.

    The paper's supplement decides by the skewness of the first scored round.
    """
    is_low_end = skewness(context.first_scores.values()) > 0
    return lowest(scores, context) if is_low_end else highest(scores, context)


def fixed(scores: Scores, context: RuleContext) -> list[str]:
    """Choose the given layers, whatever their scores."""
    return list(context.fixed_layers)


def random(scores: Scores, context: RuleContext) -> list[str]:
    """Draw layers; the draw depends on the seed and the round only."""
    names = list(scores)
    rng = np.random.default_rng([context.seed, context.server_round])
    return [names[i] for i in rng.permutation(len(names))[: context.num_layers]]


def none(scores: Scores, context: RuleContext) -> list[str]:
    """Choose no layer: plain backpropagation."""
    return []


RULES: dict[str, Callable[[Scores, RuleContext], list[str]]] = {
    rule.__name__: rule for rule in (lowest, highest, auto, fixed, random, none)
}


def skewness(values: Iterable[float]) -> float:
    """Return the sample skewness of the finite values; 0 if they are all equal.

    Above 0 most values are at the low end, with a tail to the right.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    if finite.size == 0 or np.ptp(finite) == 0:
        return 0.0
    deviations = finite - finite.mean()
    skew = float((deviations**3).mean() / (deviations**2).mean() ** 1.5)
    # Two values have skewness 0; a rounding error must not make it positive.
    return skew if abs(skew) > 1e-9 else 0.0


def check_arguments(
    rule: str, layers: Sequence[str], num_layers: int, fixed_layers: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Return the candidates and the fixed layers; raise if the rule cannot choose."""
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"rule {rule!r} is unknown; allowed: {', '.join(RULES)}")
    candidates = check_names("layers", layers)
    if not candidates and rule != "none":
        raise ValueError(f"rule {rule!r} has no layers to choose from; use rule='none'")
    if type(num_layers) is not int or num_layers < 1:
        raise ValueError(f"num_layers must be 1 or more, not {num_layers!r}")
    if rule not in ("none", "fixed") and num_layers > len(candidates):
        raise ValueError(
            f"num_layers is {num_layers}, but there are {len(candidates)} candidate "
            "layers"
        )
    fixed = check_names("fixed_layers", fixed_layers)
    if (rule == "fixed") != bool(fixed):
        raise ValueError(
            "fixed_layers and rule='fixed' go together; "
            f"got rule={rule!r}, fixed_layers={fixed!r}"
        )
    if unknown := [name for name in fixed if name not in candidates]:
        raise ValueError(
            f"fixed_layers {', '.join(unknown)} are no candidates; "
            f"candidates: {', '.join(candidates)}"
        )
    return candidates, tuple(fixed)


def check_names(argument: str, names: Iterable[str]) -> list[str]:
    """Return names as a list; raise if it is one string or has duplicates."""
    given = [] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{argument} must be a sequence of names, not {names!r}")
    if len(set(given)) < len(given):
        raise ValueError(f"{argument} contains a name twice: {', '.join(given)}")
    return given
