from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from flfa_app import results
from flfa_app.arrays import load_arrays, to_arrays, with_dtypes_of
from flfa_app.config import RunConfig
from flfa_app.results import RunDirectory, git_commit, last_rounds_score
from tests.federation import default_keys


def run_in(folder: Path, **keys: object) -> RunDirectory:
    config = RunConfig.parse(default_keys() | {"output-dir": str(folder)} | keys)
    return RunDirectory(config, 7)


def row(accuracy: float, drift: float = 1.0) -> dict[str, object]:
    numbers = {"bytes-sent": 10, "bytes-received": 20}
    return {"accuracy": accuracy, "drift": drift, **numbers}


@pytest.mark.parametrize(
    ("rounds", "last"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (100, 10)]
)
def test_score_is_the_mean_of_the_last_tenth(rounds: int, last: int) -> None:
    """Accuracies 1..n: the last k have the mean n - (k - 1) / 2."""
    rows = [row(i) for i in range(1, rounds + 1)]
    assert last_rounds_score(rows) == rounds - (last - 1) / 2


def test_summary_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path)
    run.add_round(row(0.5))

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
    run.add_round({"round": 1, "drift": math.nan, "scores": {"fc": math.inf}})
    line = (run.path / "metrics.jsonl").read_text()
    assert json.loads(line) == {"round": 1, "drift": None, "scores": {"fc": None}}


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
    copy = tmp_path / "flfa_app" / "results.py"
    copy.parent.mkdir()
    copy.write_bytes(Path(results.__file__).read_bytes())
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
    run.add_round(row(0.5))
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
