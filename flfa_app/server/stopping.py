"""When a run has done enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["reason_to_stop"]


def reason_to_stop(
    rows: Sequence[Mapping[str, Any]], *, patience: int, target_accuracy: float
) -> str | None:
    """Return why a run stops after these rounds, or None if it goes on.

    Parameters
    ----------
    rows : Sequence[Mapping[str, Any]]
        The lines of ``metrics.jsonl`` so far; not every round need be evaluated.
    patience : int
        Rounds without an accuracy above all before; 0: any number.
    target_accuracy : float
        Enough when it is reached; 0: never.
    """
    rows = [row for row in rows if "accuracy" in row]
    if not rows:
        return None
    accuracies = [row["accuracy"] for row in rows]
    last = rows[-1]["round"]
    if 0 < target_accuracy <= accuracies[-1]:
        return (
            f"round {last} has reached target-accuracy, {target_accuracy:g}: "
            f"{accuracies[-1]:.4f}"
        )
    best = accuracies.index(max(accuracies))
    waited = last - rows[best]["round"]
    if 0 < patience <= waited:
        return (
            f"no better accuracy than {accuracies[best]:.4f} of round "
            f"{rows[best]['round']} in {waited} rounds (patience)"
        )
    return None
