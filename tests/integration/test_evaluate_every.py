"""A run that is not evaluated in every round, and evaluation beside the training."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from flfa_app.config import RunConfig
from flfa_app.server import evaluation
from flfa_app.server.evaluation import evaluate
from flfa_app.server.loop import is_evaluated
from tests.federation import default_keys, metrics, run_app


def test_which_rounds_are_evaluated() -> None:
    """Of 25 rounds the last three make the score; before them every fourth."""
    keys = {"num-server-rounds": 25, "evaluate-every": 4}
    config = RunConfig.parse(default_keys() | keys)
    rounds = [r for r in range(1, 26) if is_evaluated(r, config)]
    assert rounds == [4, 8, 12, 16, 20, 23, 24, 25]


def test_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    every, some = (
        run_app(tmp_path / str(k), {"num-server-rounds": 5, "evaluate-every": k})
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
    ("overrides", "aside"),
    [({}, True), ({"patience": 9}, False), ({"target-accuracy": 1.0}, False)],
)
def test_the_next_round_waits_only_for_what_decides_whether_there_is_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: dict[str, Any],
    aside: bool,
) -> None:
    """The evaluation of round 1 waits until the clients of round 2 have been asked."""
    asked, rounds = threading.Event(), []

    def slow(*args: Any) -> Any:
        rounds.append(asked.wait(10.0 if aside else 0.2))
        return evaluate(*args)

    def note(partition: int, message: Any) -> None:
        if (
            dict(message.content.config_records.get("config", {})).get("server-round")
            == 2
        ):
            asked.set()

    monkeypatch.setattr(evaluation, "evaluate", slow)
    run_app(tmp_path, {"num-server-rounds": 2} | overrides, fault=note)
    assert rounds == [aside, True]


def test_what_goes_wrong_aside_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(evaluation, "evaluate", broken)
    with pytest.raises(RuntimeError, match="no space left"):
        run_app(tmp_path)
