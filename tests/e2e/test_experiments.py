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

from flfa_app.launch.processes import find_processes, is_running, stop_processes
from tests.federation import ROOT, metrics, run_app

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("grid")]

# That no update is so small shows only when clients have trained.
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


class Call:
    """A call of the command."""

    def __init__(self, folder: Path, at_a_time: int = 1) -> None:
        self.out = folder / "out"
        file = folder / "three.toml"
        file.write_text(GRID)
        command = [sys.executable, "-m", "flfa_app.experiments", "run", str(file)]
        command += ["--out", str(self.out), "--workers", str(at_a_time)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Whoever starts the tests may have told them to ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def homes(self, *others: Path) -> list[Path]:
        """The Flower homes of the call's SuperLinks, when they are not the others."""
        found: list[Path] = []

        def known() -> bool:
            found[:] = homes_in(self.out)
            return bool(found) and found[0] not in others

        self.wait_for(known)
        return found


def homes_in(out: Path) -> list[Path]:
    file = out / "flower-home"
    return [Path(x) for x in file.read_text().splitlines()] if file.is_file() else []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # Only if a test has failed half-way is there something left to stop.
    for home in homes_in(tmp_path / "out"):
        stop_processes(home)


def test_a_grid_that_was_killed_and_interrupted_ends_as_one_that_was_not(
    folder: Path,
) -> None:
    """Against the same cells in this process, without Flower's engine."""
    killed = Call(folder)
    first, second, bad = (
        killed.out / "cells" / f"{name}-s0" for name in ("bp", "flfa", "impossible")
    )
    half = killed.out / "running" / second.name
    killed.wait_for(lambda: any(half.glob("*/metrics.jsonl")))
    (old_home,) = killed.homes()
    old = find_processes(old_home)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.communicate()
    assert (first / "summary.json").is_file()
    assert not second.exists()
    written = os.stat(first / "summary.json")

    interrupted = Call(folder)
    (next_home,) = interrupted.homes(old_home)
    assert find_processes(old_home) == set()
    interrupted.wait_for(
        lambda: not any(map(is_running, old))
    )  # Ray's, in their own time
    interrupted.wait_for(lambda: any(half.glob("*/metrics.jsonl")))
    old = find_processes(next_home)
    interrupted.process.send_signal(signal.SIGINT)
    output, _ = interrupted.process.communicate(timeout=60)
    assert interrupted.process.returncode == 130, output
    assert "Traceback" not in output
    assert not second.exists()
    assert not any(map(is_running, old | find_processes(next_home)))
    assert not next_home.exists()

    again = Call(folder, at_a_time=2)
    new_homes = again.homes(next_home)
    assert len(new_homes) == 2
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
    assert "it must be at most 1e-09" in mark["reason"]
    assert mark["reason"] in output
    assert "it must be at most 1e-09" in Path(mark["log"]).read_text()
    assert all(find_processes(home) == set() for home in new_homes)
    assert not any(home.exists() for home in new_homes)
    assert not (again.out / "flower-home").exists()
    assert list((again.out / "running").iterdir()) == []
