"""A grid on Flower itself: killed in the middle, taken up again, with a bad cell."""

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

from flfa_app.processes import processes_of, stop
from tests.federation import ROOT, metrics, run_app

pytestmark = pytest.mark.e2e

# That 2,000 images a client are too many shows only when the images are dealt out.
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
min-partition-size = 2000
"""


class Call:
    """A call of the command with one cell at a time."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        file = folder / "three.toml"
        file.write_text(GRID)
        command = [sys.executable, "-m", "flfa_app.experiments", "run", str(file)]
        command += ["--out", str(self.out), "--workers", "1"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def home(self) -> Path:
        """The Flower home of the call's SuperLink."""
        file = self.out / "flower-home"
        self.wait_for(lambda: file.is_file() and file.read_text().endswith("\n"))
        return Path(file.read_text().strip())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # Only if a test has failed half-way is there something left to stop.
    file = tmp_path / "out" / "flower-home"
    if file.is_file():
        stop(Path(file.read_text().strip()))


def test_a_grid_that_was_killed_ends_as_one_that_was_not(folder: Path) -> None:
    """Against the same cells in this process, without Flower's engine."""
    killed = Call(folder)
    first, second, bad = (
        killed.out / "cells" / f"{name}-s0" for name in ("bp", "flfa", "impossible")
    )
    half = killed.out / "running" / second.name
    killed.wait_for(lambda: any(half.glob("*/metrics.jsonl")))
    old_home = killed.home()
    killed.process.send_signal(signal.SIGKILL)
    killed.process.communicate()
    assert (first / "summary.json").is_file()
    assert not second.exists()
    written = os.stat(first / "summary.json")

    again = Call(folder)
    again.wait_for(lambda: again.home() != old_home)
    new_home = again.home()
    assert processes_of(old_home) == set()
    output, _ = again.process.communicate(timeout=300)
    assert again.process.returncode == 1, output
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
    mark = json.loads(bad.with_name(f"{bad.name}.failed.json").read_text())
    assert "min-partition-size is 2000" in mark["reason"]
    assert mark["reason"] in output
    assert "min-partition-size is 2000" in Path(mark["log"]).read_text()
    assert processes_of(new_home) == set()
    assert not new_home.exists()
    assert not (again.out / "flower-home").exists()
    assert list((again.out / "running").iterdir()) == []
