from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from flfa_app.config import RunConfig
from flfa_app.results import run_directory as results
from flfa_app.results.records import Evaluation, RoundRecord, Timing, Traffic
from flfa_app.results.run_directory import RunDirectory
from tests.federation import default_keys

REST: dict[str, Any] = {"no_op_rounds": None, "stopped_early": None, "seconds": 1.0}


def run_in(folder: Path, **keys: object) -> RunDirectory:
    config = RunConfig.parse(default_keys() | {"output-dir": str(folder)} | keys)
    return RunDirectory.create(config, 7)


def record(accuracy: float, server_round: int = 1, **values: Any) -> RoundRecord:
    return RoundRecord(
        server_round,
        **{"evaluation": Evaluation(accuracy, auc=0.5), "drift": 1.0} | values,
        traffic=Traffic(bytes_sent=10, bytes_received=20),
        timing=Timing(train=1.0, aggregate=0.5, evaluate=0.25),
    )


def test_summary_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path)
    run.add_round(record(0.5))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(results.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run.write_summary(**REST)
    assert not (run.path / "summary.json").exists()
    run.write_summary(**REST)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["score"] == 0.5
    assert summary["bytes-sent"] == 10


def test_a_line_is_on_disk_at_once_and_is_json(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.add_round(RoundRecord(1, drift=math.nan, scores={"fc": math.inf}))
    line = json.loads((run.path / "metrics.jsonl").read_text())
    assert (line["round"], line["drift"], line["scores"]) == (1, None, {"fc": None})


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """Nothing can be written beyond it: as on a full disk, and without being root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("layers", [1, 2000])
def test_a_line_is_written_whole_or_not_at_all(
    before: int, layers: int, tmp_path: Path
) -> None:
    """Both short lines and those that are longer than Python's buffer of 8 KiB."""
    run = run_in(tmp_path)
    for _ in range(before):
        run.add_round(record(0.5))
    metrics = run.path / "metrics.jsonl"
    content = metrics.read_bytes() if before else b""
    new = record(0.75, 2, scores={f"layer{i}": 0.5 for i in range(layers)})
    length = len(new.to_line())
    assert (length > 8192) == (layers == 2000)
    with (
        files_no_longer_than(len(content) + length // 2),
        pytest.raises(OSError, match="File too large"),
    ):
        run.add_round(new)
    assert metrics.read_bytes() == content
    assert len(run.records) == before
    run.add_round(new)  # there is room again
    lines = metrics.read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2][1 - before :]


def test_the_best_round_is_one_whose_model_is_there(tmp_path: Path) -> None:
    """The first of those with the highest accuracy: of 2, 4 and 5 round 4."""
    run = run_in(tmp_path)
    assert run.best_round == 0
    for i, accuracy in enumerate([0.9, 0.5, 0.8, 0.7, 0.7], start=1):
        run.add_round(record(accuracy, i))
    assert run.best_round == 1
    run.lost_models |= {1, 3}
    assert run.best_round == 4
    summary = run.write_summary(**REST)
    assert (summary["best-round"], summary["best-accuracy"]) == (4, 0.7)


def test_an_output_dir_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"output-dir: cannot create .*file"):
        run_in(tmp_path / "file")


def test_the_folder_says_what_it_holds(tmp_path: Path) -> None:
    name = run_in(tmp_path, flfa="none", seed=3).path.name
    assert name.endswith("-digits-cnn-fedavg-bp-s3-7")


def test_the_model_is_readable_by_others(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.save_model({"w": torch.arange(3.0)})
    run.add_round(record(0.5))
    modes = {path.stat().st_mode & 0o777 for path in run.path.iterdir()}
    assert len(modes) == 1
