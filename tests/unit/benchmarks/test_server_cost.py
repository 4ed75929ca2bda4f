"""What the benchmarks of the server compare is the same work on the same replies."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from flwr.app import Array

from benchmarks import server_cost, server_memory
from benchmarks.server_cost import ServerRound


def test_both_sides_make_the_same_average() -> None:
    server_round = ServerRound(3)
    ours = server_round.aggregate()
    for plain in (server_round.average(), server_round.average_decoded()):
        assert list(plain) == list(ours)
        for name, array in ours.items():
            assert np.asarray(plain[name]).tobytes() == array.numpy().tobytes()
    assert set(server_round.strategy.scores) == set(server_round.strategy.layers)
    server_round.check()


def test_the_check_is_one() -> None:
    server_round = ServerRound(2)
    record = server_round.replies[1].content.array_records["arrays"]
    (name, *_) = record
    record[name] = Array(np.full(record[name].shape, np.nan, np.float32))
    with pytest.raises(RuntimeError, match="not finite"):
        server_round.check()


def test_replies_beyond_the_distinct_ones_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_cost, "DISTINCT", 2)
    replies = ServerRound(3).replies
    first, second, third = (r.content.array_records["arrays"] for r in replies)
    name = next(iter(first))
    assert first[name].data != second[name].data
    assert first[name].data is third[name].data
    assert first[name] is not third[name]


@pytest.mark.parametrize("benchmark", [server_cost, server_memory])
def test_the_figures_are_written(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_cost, "REPLIES", 1)
    monkeypatch.setattr(server_memory, "MANY", 2)
    monkeypatch.setattr(server_memory, "FEW", 1)
    file = tmp_path / "figures.json"
    status = benchmark.main(["--repetitions", "2", "--json", str(file)])
    content = json.loads(file.read_text())
    assert set(content) == {"machine", "figures"}
    assert len(content["figures"]) >= 3
    goals = [figure["reached"] for figure in content["figures"] if figure["goal"]]
    assert goals == [status == 0]
