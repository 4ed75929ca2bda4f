"""Checkpoints: what they hold, which are kept, and which are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.results.checkpoint import Checkpoint, CheckpointError, Checkpoints
from flfa_app.results.records import Evaluation, RoundRecord


def checkpoint(server_round: int, **changes: Any) -> Checkpoint:
    return Checkpoint(
        server_round,
        model={"w": np.array([1.0, 2.0]), "n": np.array(3)},
        strategy_arrays={"velocity/w": np.array([1.0])},
        strategy_values={"layer-selection": {"selected": ["head"]}},
        records=[RoundRecord(i, Evaluation(0.5)) for i in range(1, server_round + 1)],
        metadata={"nodes": 4},
    )._replace(**changes)


def assert_equal_arrays(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)
        assert got[name].shape == array.shape


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Arrays in their order and shape, also those that are stored column by column."""
    model = {
        "z": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "a": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        "scalar": np.array(3),
    }
    written = checkpoint(2, model=model)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.write(written, best_round=2) == checkpoints.path(2)
    read = checkpoints.newest()
    assert_equal_arrays(read.model, model)
    assert_equal_arrays(read.strategy_arrays, written.strategy_arrays)
    assert read[3:] == written[3:]
    assert read.server_round == 2


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for server_round in (1, 2, 3, 4, 5):
        checkpoints.write(checkpoint(server_round), best_round=min(server_round, 2))
    assert checkpoints.rounds() == [2, 4, 5]
    checkpoints.delete_after(2)
    names = sorted(path.name for path in checkpoints.folder.iterdir())
    assert names == ["round-000002.json", "round-000002.safetensors"]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("part", ["model", "strategy_arrays"])
def test_a_checkpoint_is_finite_or_not_written(
    part: str, value: float, tmp_path: Path
) -> None:
    bad = checkpoint(2, **{part: {"w": np.array([1.0, value])}})
    with pytest.raises(CheckpointError, match=r"round 2 is not saved: .*w is not fin"):
        Checkpoints(tmp_path).write(bad, best_round=1)
    assert Checkpoints(tmp_path).rounds() == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda json, arrays: arrays.write_bytes(b"x"), r"safetensors is damaged: its"),
        (lambda json, arrays: arrays.unlink(), r"json cannot be read: .*No such file"),
        (
            lambda json, arrays: json.write_text(json.read_text().replace("4", "5")),
            r"json is damaged: its checksum is wrong",
        ),
        (lambda json, arrays: json.write_text("{"), r"json cannot be read"),
        (lambda json, arrays: json.write_text("[]"), r"json cannot be read"),
        (None, r"json has the format 2; this version reads 1"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    damage: Callable[[Path, Path], None] | None,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.write(checkpoint(1), best_round=1)
    with monkeypatch.context() as newer_version:
        if damage is None:
            newer_version.setattr("flfa_app.results.checkpoint.FORMAT", 2)
        path = checkpoints.write(checkpoint(2), best_round=1)
    if damage is not None:
        damage(path, path.with_suffix(".safetensors"))
    assert checkpoints.newest().server_round == 1
    assert re.search(problem, caplog.text)
    assert "the checkpoint before it is used" in caplog.text
    checkpoints.path(1).unlink()
    with pytest.raises(CheckpointError, match=rf"no checkpoint to resume.*{problem}"):
        checkpoints.newest()


def test_a_checkpoint_file_has_these_keys(tmp_path: Path) -> None:
    """Other versions read it: the keys and the lines of metrics.jsonl stay."""
    path = Checkpoints(tmp_path).write(checkpoint(1), best_round=1)
    content = json.loads(path.read_text())["content"]
    keys = ["format", "round", "arrays", "arrays-sha256", "strategy", "rows", "nodes"]
    assert list(content) == keys
    assert content["rows"] == [RoundRecord(1, Evaluation(0.5)).to_json()]
