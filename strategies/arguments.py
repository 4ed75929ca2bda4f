"""The arguments of the layer selection, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .rules import RULES

__all__ = ["checked_fixed", "checked_layers", "checked_names", "checked_number"]


def checked_layers(layers: Sequence[str], rule: str) -> list[str]:
    """Return the candidates; raise if the rule cannot choose from them."""
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"rule {rule!r} is unknown; allowed: {', '.join(RULES)}")
    names = checked_names("layers", layers)
    if not names and rule != "none":
        raise ValueError(f"rule {rule!r} has no layers to choose from; use rule='none'")
    return names


def checked_number(num_layers: int, rule: str, candidates: int) -> int:
    """Return how many layers to choose; raise if there are not so many."""
    if type(num_layers) is not int or num_layers < 1:
        raise ValueError(f"num_layers must be 1 or more, not {num_layers!r}")
    if rule not in ("none", "fixed") and num_layers > candidates:
        raise ValueError(
            f"num_layers is {num_layers}, but there are {candidates} candidate layers"
        )
    return num_layers


def checked_fixed(
    fixed_layers: Sequence[str], rule: str, candidates: Sequence[str]
) -> tuple[str, ...]:
    """Return the layers of ``rule="fixed"``; raise if they and the rule do not fit."""
    names = checked_names("fixed_layers", fixed_layers)
    if (rule == "fixed") != bool(names):
        raise ValueError(
            "fixed_layers and rule='fixed' go together; "
            f"got rule={rule!r}, fixed_layers={names!r}"
        )
    if unknown := [name for name in names if name not in candidates]:
        raise ValueError(
            f"fixed_layers {', '.join(unknown)} are no candidates; "
            f"candidates: {', '.join(candidates)}"
        )
    return tuple(names)


def checked_names(argument: str, names: Iterable[str]) -> list[str]:
    """Return names as a list; raise if they are none, or name a layer twice."""
    given = [] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{argument} must be a sequence of names, not {names!r}")
    if len(set(given)) < len(given):
        raise ValueError(f"{argument} name a layer twice: {', '.join(given)}")
    return given
