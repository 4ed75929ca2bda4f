"""A full disk, and an average that must not be saved."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from flfa_app.launch import cli as launch
from flfa_app.launch.superlink import RunOutcome
from flfa_app.results.records import RoundRecord
from flfa_app.results.run_directory import RunDirectory
from flfa_app.server import loop as rounds
from tests.federation import metrics, run_app

KEYS = {"pictures": False, "num-server-rounds": 4, "train-fraction": 0.3}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 kB: two checkpoints of 98 kB each fit, a third does not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"this user cannot mount a disk: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(
    small_disk: Path, tmp_path: Path
) -> None:
    """Resumed with more space, the run has the results of an undisturbed one."""
    with pytest.raises(RuntimeError, match="No space left on device") as failed:
        run_app(small_disk, KEYS)
    (run,) = small_disk.iterdir()
    (last, *_) = sorted((run / "checkpoints").glob("*.json"), reverse=True)
    assert f"The last good checkpoint is {last}" in str(failed.value)
    assert not [p for p in run.rglob("*") if p.name.endswith(".unfinished")]
    remount = ["mount", "-o", "remount,size=50m", str(small_disk)]
    subprocess.run(remount, check=True)
    run_app(small_disk, KEYS | {"resume": str(run)}, new_folder=False)
    whole = run_app(tmp_path / "whole", KEYS)
    assert metrics(run) == metrics(whole)
    model = (whole / "model.safetensors").read_bytes()
    assert (run / "model.safetensors").read_bytes() == model


def fill(disk: Path) -> None:
    """Fill a disk to its last block."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "x").write_bytes(bytes(10**6))


def test_a_line_that_does_not_fit_is_not_written_in_part(small_disk: Path) -> None:
    """The disk accepts bytes until its last block is full, and then fails."""
    run = RunDirectory(small_disk, "cnn")
    run.add_round(RoundRecord(1))
    before = (small_disk / "metrics.jsonl").read_bytes()
    fill(small_disk)
    for scores in ({f"layer{i}": 0.5 for i in range(n)} for n in (400, 2000)):
        assert len(json.dumps(scores)) > 4096
        with pytest.raises(OSError, match="No space left"):
            run.add_round(RoundRecord(2, scores=scores))
        assert (small_disk / "metrics.jsonl").read_bytes() == before


def test_a_log_that_cannot_be_written_does_not_hide_why_the_run_failed(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``make run`` prints the error, and leaves no part of the log."""
    why = "No space left on device\nThe last good checkpoint is round-000002.json"

    class FailedRun:
        def run(self, **keys: Any) -> RunOutcome:
            for i in range(1000):
                keys["on_log_line"](f"DEBUG : line {i} of what Flower has logged")
            return RunOutcome(completed=False, details=why, results=None)

    fill(small_disk)
    before = [*small_disk.iterdir()]
    options = argparse.Namespace(
        nodes=2, workers=1, gpus_per_client=0.0, output_dir=small_disk, verbose=False
    )

    def command() -> None:
        launch.launch(FailedRun(), options, {})  # type: ignore[arg-type]

    assert launch.run_command(command) == 1
    told = capsys.readouterr().err
    assert f"the run has failed: {why}" in told
    log = small_disk / "failed-run.log"
    assert f"could not be written to {log} (No space left on device)" in told
    assert [*small_disk.iterdir()] == before


def test_an_average_that_is_not_finite_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite updates can have an infinite sum. It is rare, so the test makes one."""
    plain = rounds.with_dtypes_of
    calls: list[int] = []

    def overflowing(like: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
        calls.append(1)
        averaged = plain(like, arrays)
        if len(calls) < 3:
            return averaged
        first: Any = next(iter(averaged))
        infinite = Array(np.full_like(averaged[first].numpy(), np.inf))
        return ArrayRecord({**averaged, first: infinite})

    monkeypatch.setattr(rounds, "with_dtypes_of", overflowing)
    with pytest.raises(RuntimeError, match=r"round 3: .* is not finite") as failed:
        run_app(tmp_path, KEYS)
    assert "round-000002.json" in str(failed.value)
    (run,) = tmp_path.iterdir()
    assert len(metrics(run)) == 2
