"""Simulations on Flower itself: real SuperLink, real Ray, real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from flfa_app.launch.processes import find_processes
from flfa_app.launch.superlink import SuperLink, local_superlink
from tests.federation import ROOT, metrics, run_app

pytestmark = pytest.mark.e2e

NODES = 6
KEYS: dict[str, Any] = {"num-server-rounds": 3, "local-epochs": 1, "norm": "batch"}


def start_launch(folder: Path, run_config: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flfa_app.launch", "--run-config", run_config]
    command += ["--output-dir", str(folder), *options]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The process that started the tests may ignore Ctrl-C; children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def flower_home(pid: int) -> Path:
    """The Flower home of the SuperLink that a launch has started."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            with suppress(psutil.Error, KeyError):  # it may have ended
                return Path(child.environ()["FLWR_HOME"])
        time.sleep(0.1)
    raise AssertionError("no SuperLink was started")


class Launched(NamedTuple):
    """A run of the command that has ended."""

    output: str
    status: int
    home: Path
    folder: Path


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """A run with two workers."""
    folder = tmp_path_factory.mktemp("launched")
    keys = "num-server-rounds=3 local-epochs=1 norm='batch'"
    process = start_launch(folder, keys, "--nodes", str(NODES), "--workers", "2")
    home = flower_home(process.pid)
    output, _ = process.communicate(timeout=300)
    return Launched(output, process.returncode, home, folder)


@pytest.fixture(scope="module")
def superlink() -> Any:
    with local_superlink(ROOT) as link:
        yield link


def test_launch_succeeds_and_leaves_nothing_behind(launched: Launched) -> None:
    assert launched.status == 0, launched.output
    (results,) = launched.folder.iterdir()
    assert json.loads((results / "summary.json").read_text())["rounds"] == 3
    assert launched.output.count(str(results)) == 2
    lines = launched.output.splitlines()
    assert [line[:9] for line in lines if "accuracy" in line] == [
        "round 1/3",
        "round 2/3",
        "round 3/3",
    ]
    assert find_processes(launched.home) == set()
    assert not launched.home.exists()


def test_the_number_of_workers_changes_no_bit(
    launched: Launched, superlink: SuperLink, tmp_path: Path
) -> None:
    """Metrics and model with two workers, with one, and in this process."""
    (two,) = launched.folder.iterdir()
    lines: list[str] = []
    outcome = superlink.run(
        run_config=KEYS,
        nodes=NODES,
        workers=1,
        output_dir=tmp_path / "one",
        on_log_line=lines.append,
    )
    assert outcome.completed, "\n".join(lines)
    assert outcome.results is not None
    for other in (outcome.results, run_app(tmp_path / "none", KEYS, nodes=NODES)):
        assert metrics(two) == metrics(other)
        model = (other / "model.safetensors").read_bytes()
        assert (two / "model.safetensors").read_bytes() == model


def test_an_unknown_key_does_not_start_a_run(
    superlink: SuperLink, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="flwr run has failed"):
        superlink.run(
            run_config={"no-such-key": 1},
            nodes=2,
            workers=1,
            output_dir=tmp_path,
            on_log_line=lambda line: None,
        )


def test_launch_exits_with_1_when_the_run_has_failed(tmp_path: Path) -> None:
    """The config is valid; that no client can train with it shows in the run."""
    keys = "learning-rate=1e30 norm='batch'"
    process = start_launch(tmp_path, keys, "--nodes", "2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "lower the learning rate" in output
    assert len(output.splitlines()) < 20, output
    assert "Traceback" in (tmp_path / "failed-run.log").read_text()


def test_a_closed_terminal_stops_everything(tmp_path: Path) -> None:
    """Ctrl-C is tried with the deployment, the exit status of signals in test_cli."""
    process = start_launch(tmp_path, "num-server-rounds=500", "--nodes", "2")
    try:
        home = flower_home(process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round "):
                break
        assert len(find_processes(home)) > 3  # SuperLink, simulation, Ray
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=120)
    finally:
        process.terminate()
    assert process.returncode == 128 + signal.SIGHUP
    assert find_processes(home) == set()
    (results,) = tmp_path.iterdir()
    assert (results / "metrics.jsonl").exists()
    assert not (results / "summary.json").exists()
