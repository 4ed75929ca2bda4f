"""The record of a round, and the keys of ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from dataclasses import replace
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

EVALUATION = Evaluation(
    accuracy=0.5,
    loss=1.5,
    auc=0.75,
    intra_class=2.0,
    inter_class=3.0,
    separability=4.0,
    extra_accuracy={"elsewhere": 0.25},
    further={"macro-f1": 0.125},
)
FULL = RoundRecord(
    server_round=3,
    evaluation=EVALUATION,
    drift=1.25,
    selected=("head",),
    scores={"conv1": 0.5, "head": 0.75},
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
    '"inter-class": 3.0, "separability": 4.0, "extra-accuracy": {"elsewhere": 0.25}, '
    '"macro-f1": 0.125, "drift": 1.25, "selected": ["head"], "scores": '
    '{"conv1": 0.5, "head": 0.75}, "train-loss": 0.875, "learning-rate": 0.01, '
    '"participants": [0, 1, 2, 3], "failed": [1], "failed-before": [5, 6], '
    '"spare": [3], "bytes-sent": 40, "bytes-received": 20, "diagnostics": '
    '{"head": {"angle": 80.0, "error": 1.0}}, "seconds": {"train": 1.0, '
    '"aggregate": 0.5, "evaluate": 0.25}}\n'
)


def test_a_line_has_every_key_in_order_and_is_read_back(tmp_path: Path) -> None:
    assert FULL.to_line() == LINE
    (tmp_path / "metrics.jsonl").write_text(2 * LINE)
    assert read_records(tmp_path / "metrics.jsonl") == [FULL, FULL]
    assert FULL.timing.total == 1.75
    assert FULL.timing.without_evaluation == 1.5


def test_what_is_not_finite_is_null_and_comes_back_as_nan() -> None:
    evaluation = replace(EVALUATION, separability=math.inf)
    record = replace(FULL, evaluation=evaluation, scores={"head": math.nan})
    written = record.to_json()
    assert (written["separability"], written["scores"]) == (None, {"head": None})
    read = RoundRecord.from_json(written)
    assert read.evaluation is not None
    assert math.isnan(read.evaluation.separability)
    assert math.isnan(read.scores["head"])


def test_keys_are_absent_without_an_evaluation_or_diagnostics() -> None:
    line = RoundRecord(1).to_json()
    evaluated = RoundRecord(1, Evaluation(0.5)).to_json()
    assert "diagnostics" not in line
    assert {"accuracy", "auc", "extra-accuracy"} <= evaluated.keys() - line.keys()
    assert RoundRecord.from_json(line).evaluation is None


def test_keys_an_older_version_did_not_write_are_not_measured() -> None:
    for written in ({"round": 2, "accuracy": 0.5}, {"round": 2, "seconds": {}}):
        evaluation = Evaluation(0.5) if "accuracy" in written else None
        assert RoundRecord.from_json(written) == RoundRecord(2, evaluation)


@pytest.mark.parametrize("content", [[], 3, {}, {"round": None}, {"round": "1"}])
def test_a_line_that_is_no_round_is_refused(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="number of a round"):
        read_records(file)
