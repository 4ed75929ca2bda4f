"""A grid with Flower: killed, interrupted, and finished by a third call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flfa_app.launch.processes import find_processes, is_running, stop_processes
from tests.federation import ROOT, metrics, run_app

pytestmark = pytest.mark.e2e

# The last cell fails after its clients have trained: no update is so small.
GRID = """
title = "Three cells"
nodes = 2
seeds = [0]
columns = "setting"
[keys]
num-server-rounds = 4
local-epochs = 1
[axes.setting.bp]
flfa = "none"
[axes.setting.flfa]
flfa = "lowest"
[axes.setting.impossible]
max-update-norm = 1e-9
"""


class GridCall:
    """A call of ``python -m flfa_app.experiments run``."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.out = folder / "out"
        file = folder / "three.toml"
        file.write_text(GRID)
        command = [sys.executable, "-m", "flfa_app.experiments", "run", str(file)]
        command += ["--out", str(self.out), "--workers", str(workers)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # The tests may have been started with Ctrl-C ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait_for_homes(self, *earlier: Path) -> list[Path]:
        """Return the Flower homes of this call's SuperLinks."""
        homes: list[Path] = []

        def are_recorded() -> bool:
            homes[:] = recorded_homes(self.out)
            return bool(homes) and homes[0] not in earlier

        self.wait_until(are_recorded)
        return homes


def recorded_homes(out: Path) -> list[Path]:
    file = out / "flower-home"
    return [Path(x) for x in file.read_text().splitlines()] if file.is_file() else []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # Homes are recorded only if the test failed before its calls ended.
    for home in recorded_homes(tmp_path / "out"):
        stop_processes(home)


def test_a_grid_survives_a_kill_and_an_interrupt(folder: Path) -> None:
    """Its results equal those of runs in this process, without Flower's engine."""
    killed = GridCall(folder)
    first, second, bad = (
        killed.out / "cells" / f"{name}-s0" for name in ("bp", "flfa", "impossible")
    )
    running = killed.out / "running" / second.name
    killed.wait_until(lambda: any(running.glob("*/metrics.jsonl")))
    (killed_home,) = killed.wait_for_homes()
    processes = find_processes(killed_home)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.communicate()
    assert (first / "summary.json").is_file()
    assert not second.exists()
    written = os.stat(first / "summary.json")

    interrupted = GridCall(folder)
    (interrupted_home,) = interrupted.wait_for_homes(killed_home)
    assert find_processes(killed_home) == set()
    # Ray's processes end some time after they are told to.
    interrupted.wait_until(lambda: not any(map(is_running, processes)))
    interrupted.wait_until(lambda: any(running.glob("*/metrics.jsonl")))
    processes = find_processes(interrupted_home)
    interrupted.process.send_signal(signal.SIGINT)
    output, _ = interrupted.process.communicate(timeout=60)
    assert interrupted.process.returncode == 130, output
    assert "Traceback" not in output
    assert not second.exists()
    assert not any(map(is_running, processes | find_processes(interrupted_home)))
    assert not interrupted_home.exists()

    last = GridCall(folder, workers=2)
    last_homes = last.wait_for_homes(interrupted_home)
    assert len(last_homes) == 2
    output, _ = last.process.communicate(timeout=300)
    assert last.process.returncode == 1, output
    assert "3 cells: 1 finished, 2 to do" in output
    assert "1 of 2 cells have failed" in output
    now = os.stat(first / "summary.json")
    assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    keys = {"num-server-rounds": 4, "local-epochs": 1}
    for directory, rule in ((first, "none"), (second, "lowest")):
        reference = run_app(folder / rule, {**keys, "flfa": rule}, nodes=2)
        assert metrics(directory) == metrics(reference)
        model = (directory / "model.safetensors").read_bytes()
        assert model == (reference / "model.safetensors").read_bytes()

    assert not bad.exists()
    failure = json.loads(bad.with_name(f"{bad.name}.failed.json").read_text())
    assert "it must be at most 1e-09" in failure["reason"]
    assert failure["reason"] in output
    assert "it must be at most 1e-09" in Path(failure["log"]).read_text()
    assert all(find_processes(home) == set() for home in last_homes)
    assert not any(home.exists() for home in last_homes)
    assert not (last.out / "flower-home").exists()
    assert list((last.out / "running").iterdir()) == []
