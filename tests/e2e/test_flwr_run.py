"""The app on Flower itself: real SuperLink, real Ray, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flfa_app.launch.processes import find_processes
from flfa_app.launch.superlink import RunOutcome, SuperLink, local_superlink
from tests.federation import ROOT, metrics, run_app

pytestmark = pytest.mark.e2e

QUICK: dict[str, Any] = {"num-server-rounds": 3, "local-epochs": 1}


def run(
    superlink: SuperLink, folder: Path, *, workers: int = 2, nodes: int = 6, **keys: Any
) -> tuple[RunOutcome, list[str]]:
    lines: list[str] = []
    overrides = QUICK | {key.replace("_", "-"): value for key, value in keys.items()}
    outcome = superlink.run(
        run_config=overrides,
        nodes=nodes,
        workers=workers,
        output_dir=folder,
        on_log_line=lines.append,
    )
    return outcome, lines


@pytest.fixture(scope="module")
def superlink() -> Any:
    with local_superlink(ROOT) as link:
        yield link


def test_one_worker_or_two_or_none_the_run_is_the_same(
    superlink: SuperLink, tmp_path: Path
) -> None:
    """Bit for bit: metrics and model, with Ray's workers and in this process."""
    folders = []
    for workers in (1, 2):
        outcome, lines = run(superlink, tmp_path, workers=workers, norm="batch")
        assert outcome.completed, "\n".join(lines)
        assert outcome.results is not None
        folders.append(outcome.results)
        printed = [line for line in lines if "Results: " in line]
        assert len(printed) == 2
        assert all(str(outcome.results) in line for line in printed)
        progress = [line for line in lines if "accuracy" in line]
        assert [line[line.index("round") :][:9] for line in progress] == [
            "round 1/3",
            "round 2/3",
            "round 3/3",
        ]
    folders.append(run_app(tmp_path, QUICK | {"norm": "batch"}, nodes=6))
    one, *others = folders
    for other in others:
        assert metrics(one) == metrics(other)
        model = (other / "model.safetensors").read_bytes()
        assert (one / "model.safetensors").read_bytes() == model


def test_a_run_that_fails_is_a_failure(superlink: SuperLink, tmp_path: Path) -> None:
    outcome, lines = run(superlink, tmp_path, nodes=2, flfa="louwest")
    assert not outcome.completed
    assert outcome.results is None
    assert any("flfa is 'louwest'; it must be one of lowest" in line for line in lines)


def test_an_unknown_key_never_starts(superlink: SuperLink, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="flwr run has failed"):
        run(superlink, tmp_path, no_such_key=1)


def launch(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flfa_app.launch", "--nodes", "2"]
    command += ["--output-dir", str(folder), *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell lets what it runs in the background ignore Ctrl-C, tests included.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def home_of(pid: int) -> Path:
    """The Flower home of the SuperLink that a launch has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with suppress(OSError):  # it may have ended
                for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"FLWR_HOME="):
                        return Path(entry.removeprefix(b"FLWR_HOME=").decode())
        time.sleep(0.1)
    raise AssertionError("no SuperLink was started")


def test_launch_succeeds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = launch("--run-config", "configs/smoke.toml", folder=tmp_path)
    home = home_of(process.pid)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    (results,) = tmp_path.iterdir()
    assert json.loads((results / "summary.json").read_text())["rounds"] == 2
    assert output.count(str(results)) == 2
    assert find_processes(home) == set()
    assert not home.exists()


def test_launch_exits_with_1_when_the_run_has_failed(tmp_path: Path) -> None:
    """Right as a config; that no client can train with it shows in the run."""
    keys = "learning-rate=1e30 norm='batch'"
    process = launch("--run-config", keys, folder=tmp_path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "none of 2 clients returned a valid update, min-replies is 1: " in output
    assert "lower the learning rate" in output
    assert len(output.splitlines()) < 20, output
    assert "Traceback" in (tmp_path / "failed-run.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_or_a_closed_terminal_stops_everything(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = launch("--run-config", "num-server-rounds=500", folder=tmp_path)
    home = home_of(process.pid)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round "):
            break
    assert len(find_processes(home)) > 3  # SuperLink, simulation, Ray
    os.kill(process.pid, number)
    try:
        process.communicate(timeout=120)
    finally:
        process.terminate()  # nothing stays behind when this test fails
    assert process.returncode == 128 + number
    assert find_processes(home) == set()
    (results,) = tmp_path.iterdir()
    assert (results / "metrics.jsonl").exists()
    assert not (results / "summary.json").exists()
