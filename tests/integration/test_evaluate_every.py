"""Rounds without evaluation, and evaluation during the next round's training."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from flfa_app.config import RunConfig
from flfa_app.results.records import Evaluation
from flfa_app.server import evaluation
from flfa_app.server.evaluation import evaluate
from flfa_app.server.loop import is_evaluated
from tests.federation import default_keys, metrics, run_app

SMALL = {"pictures": False, "train-fraction": 0.3}


def test_which_rounds_are_evaluated() -> None:
    """Of 25 rounds the last three make the score; before them every fourth."""
    keys = {"num-server-rounds": 25, "evaluate-every": 4}
    config = RunConfig.parse(default_keys() | keys)
    rounds = [r for r in range(1, 26) if is_evaluated(r, config)]
    assert rounds == [4, 8, 12, 16, 20, 23, 24, 25]


def test_a_round_without_evaluation_is_otherwise_the_same(tmp_path: Path) -> None:
    every, some = (
        run_app(
            tmp_path / str(k), SMALL | {"num-server-rounds": 5, "evaluate-every": k}
        )
        for k in (1, 2)
    )
    for one, other in zip(metrics(every), metrics(some), strict=True):
        if other["round"] in (2, 4, 5):
            assert other == one
        else:
            assert "accuracy" not in other
            assert other == {key: one[key] for key in other}
    models = [(run / "model.safetensors").read_bytes() for run in (every, some)]
    assert models[0] == models[1]
    one, other = (
        json.loads((run / "summary.json").read_text()) for run in (every, some)
    )
    assert other["score"] == one["score"]
    assert other["best-round"] in (2, 4, 5)


@pytest.mark.parametrize(
    ("overrides", "overlaps"),
    [({}, True), ({"patience": 9}, False), ({"target-accuracy": 1.0}, False)],
)
def test_evaluation_overlaps_with_the_next_round_unless_it_decides_about_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: dict[str, Any],
    overlaps: bool,
) -> None:
    """The evaluation of round 1 waits until the clients of round 2 have a message."""
    round_2_started, started_before_end = threading.Event(), []

    def slow(*args: Any) -> Evaluation:
        started_before_end.append(round_2_started.wait(10.0 if overlaps else 0.2))
        return evaluate(*args)

    def watch(partition: int, message: Any) -> None:
        config = message.content.config_records.get("config", {})
        if config.get("server-round") == 2:
            round_2_started.set()

    monkeypatch.setattr(evaluation, "evaluate", slow)
    run_app(tmp_path, SMALL | {"num-server-rounds": 2} | overrides, fault=watch)
    assert started_before_end == [overlaps, True]


def test_an_error_of_the_evaluation_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Evaluation:
        raise OSError("no space left")

    monkeypatch.setattr(evaluation, "evaluate", broken)
    with pytest.raises(RuntimeError, match="no space left"):
        run_app(tmp_path, SMALL)
