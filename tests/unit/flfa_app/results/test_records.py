"""The record of a round, and the keys of ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flfa_app.results.records import (
    Evaluation,
    RoundRecord,
    Timing,
    Traffic,
    read_records,
)

FULL = RoundRecord(
    server_round=3,
    evaluation=Evaluation(
        accuracy=0.5,
        loss=1.5,
        auc=0.75,
        intra_class=2.0,
        inter_class=3.0,
        separability=math.inf,
        extra_accuracy={"elsewhere": 0.25},
        further={"macro-f1": 0.125},
    ),
    drift=1.25,
    selected=("head",),
    scores={"conv1": 0.5, "head": math.nan},
    train_loss=0.875,
    learning_rate=0.01,
    participants=(0, 1, 2, 3),
    failed=(1,),
    failed_before=(5, 6),
    spare=(3,),
    traffic=Traffic(bytes_sent=40, bytes_received=20),
    diagnostics={"head": {"angle": 80.0, "error": 1.0}},
    timing=Timing(train=1.0, aggregate=0.5, evaluate=0.25),
)
LINE = (
    '{"round": 3, "accuracy": 0.5, "loss": 1.5, "auc": 0.75, "intra-class": 2.0, '
    '"inter-class": 3.0, "separability": null, "extra-accuracy": {"elsewhere": 0.25}, '
    '"macro-f1": 0.125, "drift": 1.25, "selected": ["head"], "scores": '
    '{"conv1": 0.5, "head": null}, "train-loss": 0.875, "learning-rate": 0.01, '
    '"participants": [0, 1, 2, 3], "failed": [1], "failed-before": [5, 6], '
    '"spare": [3], "bytes-sent": 40, "bytes-received": 20, "diagnostics": '
    '{"head": {"angle": 80.0, "error": 1.0}}, "seconds": {"train": 1.0, '
    '"aggregate": 0.5, "evaluate": 0.25}}\n'
)


def test_a_line_has_every_key_in_order_and_null_for_what_is_not_finite() -> None:
    assert FULL.to_line() == LINE


def test_a_line_is_read_back(tmp_path: Path) -> None:
    """Except for infinity, which is null in the file and comes back as nan."""
    (tmp_path / "metrics.jsonl").write_text(2 * LINE)
    first, second = read_records(tmp_path / "metrics.jsonl")
    assert first == second
    assert first.to_line() == LINE
    evaluation = first.evaluation
    assert evaluation is not None
    assert math.isnan(evaluation.separability)
    assert math.isnan(first.scores["head"])
    assert evaluation.further == {"macro-f1": 0.125}
    assert first.timing.total == 1.75
    assert first.timing.without_evaluation == 1.5
    others = {k: v for k, v in vars(first).items() if k not in ("evaluation", "scores")}
    assert others == {key: vars(FULL)[key] for key in others}


def test_keys_are_absent_without_an_evaluation_or_diagnostics() -> None:
    line = RoundRecord(1).to_json()
    evaluated = RoundRecord(1, Evaluation(0.5)).to_json()
    assert "diagnostics" not in line
    assert {"accuracy", "auc", "extra-accuracy"} <= evaluated.keys() - line.keys()
    assert RoundRecord.from_json(line).evaluation is None


def test_keys_an_older_version_did_not_write_are_not_measured() -> None:
    record = RoundRecord.from_json({"round": 2, "accuracy": 0.5, "seconds": {}})
    assert record == RoundRecord(2, Evaluation(0.5))


@pytest.mark.parametrize("content", [[], 3, {}, {"round": None}, {"round": "1"}])
def test_a_line_that_is_no_round_is_refused(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="number of a round"):
        read_records(file)
