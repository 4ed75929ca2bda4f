from __future__ import annotations

import pytest

from flfa_app.results.records import Evaluation, RoundRecord
from flfa_app.server.recorder import reason_to_stop


def records(*accuracies: float | None) -> list[RoundRecord]:
    return [
        RoundRecord(i, None if accuracy is None else Evaluation(accuracy))
        for i, accuracy in enumerate(accuracies, 1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "patience", "target", "stops"),
    [
        ((), 1, 0.5, False),
        ((0.1, 0.2), 0, 0.0, False),
        ((0.1, 0.5), 0, 0.5, True),
        ((0.6, 0.4), 0, 0.5, False),  # it has to be so now: this is the model saved
        ((0.3, 0.2), 2, 0.0, False),
        ((0.3, 0.2, 0.3), 2, 0.0, True),  # as good is not better
        ((0.3, 0.2, 0.31), 2, 0.0, False),
        ((0.3, 0.2, 0.31, 0.1, 0.1), 2, 0.0, True),
        ((0.3, 0.2, 0.1), 0, 0.9, False),
    ],
)
def test_when_a_run_stops(
    accuracies: tuple[float, ...], patience: int, target: float, stops: bool
) -> None:
    reason = reason_to_stop(
        records(*accuracies), patience=patience, target_accuracy=target
    )
    assert (reason is not None) == stops


def test_the_reason_names_key_and_value() -> None:
    reason = reason_to_stop(records(0.3, 0.2, 0.1), patience=2, target_accuracy=0.0)
    assert reason == "no better accuracy than 0.3000 of round 1 in 2 rounds (patience)"
    reason = reason_to_stop(records(0.3), patience=0, target_accuracy=0.25)
    assert reason == "round 1 has reached target-accuracy, 0.25: 0.3000"


def test_rounds_without_an_evaluation_count_for_patience() -> None:
    """Round 2 is the best; round 6, the next evaluation, is four rounds later."""
    some = records(None, 0.5, None, None, None, 0.4)
    assert reason_to_stop(some[:5], patience=3, target_accuracy=0.0) is None
    reason = reason_to_stop(some, patience=4, target_accuracy=0.0)
    assert reason == "no better accuracy than 0.5000 of round 2 in 4 rounds (patience)"
    assert reason_to_stop(some, patience=5, target_accuracy=0.0) is None
    assert reason_to_stop(some[:1], patience=1, target_accuracy=0.1) is None
