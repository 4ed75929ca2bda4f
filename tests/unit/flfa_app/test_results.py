from __future__ import annotations

import json
import math
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from flfa_app.arrays import load_arrays, to_arrays, with_dtypes_of
from flfa_app.config import RunConfig
from flfa_app.results import provenance
from flfa_app.results import run_directory as results
from flfa_app.results.provenance import git_commit
from flfa_app.results.records import Evaluation, RoundRecord, Timing, Traffic
from flfa_app.results.run_directory import RunDirectory
from tests.federation import default_keys


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


def test_summary_of_a_run(tmp_path: Path) -> None:
    """Twenty rounds: the last 10 % are rounds 19 and 20.

    Their accuracies 0.19 and 0.20 have the mean 0.195, and so on. From round 2 on a
    layer is selected: 19 times, of which 3 times conv2. The first scores are 0, 0, 0
    and 1: their mean is 1/4, the second central moment (3 (1/4)² + (3/4)²) / 4 = 3/16,
    the third (-3 (1/4)³ + (3/4)³) / 4 = 3/32, the skewness 3/32 / (3/16)^1.5 = 2/√3.
    A round takes 1 + 0.5 + 0.25 seconds.
    """
    run = run_in(tmp_path)
    scores = {"conv1": 0.0, "conv2": 0.0, "conv3": 0.0, "head": 1.0}
    for i in range(1, 21):
        chosen = () if i == 1 else ("conv2",) if i <= 4 else ("head",)
        extra = {"elsewhere": i / 200}
        measured = Evaluation(i / 100, auc=0.5 + i / 100, extra_accuracy=extra)
        run.add_round(
            record(0.0, i, evaluation=measured, selected=chosen, scores=scores)
        )
        scores = {"conv1": 0.5, "conv2": 0.5, "conv3": 0.5, "head": 0.5}
    summary = run.write_summary({})
    assert summary == json.loads((run.path / "summary.json").read_text())
    assert summary["score"] == pytest.approx(0.195)
    assert summary["auc"] == pytest.approx(0.695)
    assert summary["extra-accuracy"] == {"elsewhere": pytest.approx(0.0975)}
    shares = {"conv1": 0, "conv2": 3 / 19, "conv3": 0, "head": 16 / 19}
    assert summary["selection-frequency"] == shares
    assert summary["round-1-skewness"] == pytest.approx(2 / math.sqrt(3))
    assert summary["seconds-per-round"] == 1.75


def test_summary_without_scores(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.add_round(record(0.5, scores={"head": math.nan}))
    summary = run.write_summary({})
    assert summary["round-1-skewness"] is None
    assert summary["selection-frequency"] == {}


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
            run.write_summary({})
    assert not (run.path / "summary.json").exists()
    run.write_summary({"seconds": 1})
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
    summary = run.write_summary({})
    assert (summary["best-round"], summary["best-accuracy"]) == (4, 0.7)


def test_an_output_dir_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"output-dir: cannot create .*file"):
        run_in(tmp_path / "file")


def test_the_folder_says_what_it_holds(tmp_path: Path) -> None:
    name = run_in(tmp_path, flfa="none", seed=3).path.name
    assert name.endswith("-digits-cnn-fedavg-bp-s3-7")


def test_git_commit_is_that_of_the_same_source(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert git_commit(tmp_path) is None  # nothing of ours here
    copy = tmp_path / "flfa_app" / "results" / "provenance.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(Path(provenance.__file__).read_bytes())
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")
    git("tag", "-a", "v1", "-m", "x")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "flfa_app" / "more.py").write_text("")
    git("add", "-A")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    copy.write_text("# another version")
    assert git_commit(tmp_path) is None


def test_the_model_is_readable_by_others(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.save_model({"w": torch.arange(3.0)})
    run.add_round(record(0.5))
    modes = {path.stat().st_mode & 0o777 for path in run.path.iterdir()}
    assert len(modes) == 1


def test_arrays_there_and_back() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    other = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    model[1].num_batches_tracked += 5
    weight = other[0].weight
    load_arrays(other, to_arrays(model.state_dict()))
    assert other[0].weight is weight  # in place: an optimizer would keep it
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_types_survive_averaging() -> None:
    """34.999... is 35; float64 means come back as the float32 they were."""
    like = ArrayRecord(
        {"n": Array(np.array(35)), "w": Array(np.ones((2,), np.float32))}
    )
    mean = ArrayRecord(
        {
            "n": Array(np.array(34.99999999999999)),
            "w": Array(np.array([0.1, 0.2], np.float64)),
        }
    )
    back = with_dtypes_of(like, mean)
    assert back["n"].numpy() == 35
    assert back["n"].numpy().dtype == np.int64
    assert back["n"].numpy().shape == ()
    np.testing.assert_array_equal(back["w"].numpy(), np.array([0.1, 0.2], np.float32))
