"""When a run has done enough."""

from __future__ import annotations

from collections.abc import Sequence

from flfa_app.results.records import RoundRecord

__all__ = ["reason_to_stop"]


def reason_to_stop(
    records: Sequence[RoundRecord], *, patience: int, target_accuracy: float
) -> str | None:
    """Return why a run stops after these rounds, or None if it goes on.

    Parameters
    ----------
    records : Sequence[RoundRecord]
        The rounds so far; not every round need be evaluated.
    patience : int
        Rounds without an accuracy above all before; 0: any number.
    target_accuracy : float
        Enough when it is reached; 0: never.
    """
    evaluated = [
        (record.server_round, record.evaluation.accuracy)
        for record in records
        if record.evaluation is not None
    ]
    if not evaluated:
        return None
    accuracies = [accuracy for _, accuracy in evaluated]
    last = evaluated[-1][0]
    if 0 < target_accuracy <= accuracies[-1]:
        return (
            f"round {last} has reached target-accuracy, {target_accuracy:g}: "
            f"{accuracies[-1]:.4f}"
        )
    best = accuracies.index(max(accuracies))
    best_round = evaluated[best][0]
    waited = last - best_round
    if 0 < patience <= waited:
        return (
            f"no better accuracy than {accuracies[best]:.4f} of round "
            f"{best_round} in {waited} rounds (patience)"
        )
    return None
