"""All processes of a Flower home are found and stopped, also re-titled ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flfa_app.launch.processes import find_processes, is_running, stop_processes

# Prints the ids of itself, of a child without the environment in its own session, and
# of that child's child; the latter two ignore SIGTERM.
TREE = """
import os, subprocess, sys, time
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
SLEEP = "import time; time.sleep(600)"
CHILD = (
    IGNORE + "import subprocess, sys; "
    f"p = subprocess.Popen([sys.executable, '-c', {IGNORE + SLEEP!r}]); "
    "print(p.pid, flush=True); p.wait()"
)
child = subprocess.Popen([sys.executable, "-c", CHILD], env={}, stdout=subprocess.PIPE,
                         start_new_session=True, text=True)
print(os.getpid(), child.pid, child.stdout.readline(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TREE],
        env={**os.environ, "FLWR_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_descendants_are_found_and_stopped(
    tree: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tree.stdout is not None
    pids = {int(pid) for pid in tree.stdout.readline().split()}
    assert len(pids) == 3
    assert find_processes(tmp_path) == pids
    assert find_processes(tmp_path / "other") == set()
    # Two ignore SIGTERM, and once their parent has ended nothing leads to them.
    monkeypatch.setattr("flfa_app.launch.processes.STOP_TIMEOUT", 1.0)
    stop_processes(tmp_path, tree)
    assert not any(map(is_running, pids))
    assert tree.returncode == -signal.SIGTERM
    assert find_processes(tmp_path) == set()


def test_a_process_that_has_ended_is_not_running() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_for_status(process, psutil.STATUS_ZOMBIE)
    assert not is_running(process.pid)  # its exit status has not been read yet
    process.wait()
    assert not is_running(process.pid)
    assert is_running(os.getpid())


# The first thread ends at once, which makes the process a zombie; the second sleeps.
WITHOUT_FIRST_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WITHOUT_FIRST_THREAD])
    with process:
        wait_for_status(process, psutil.STATUS_ZOMBIE)
        assert is_running(process.pid)
        stop_processes(tmp_path, process)
        assert process.returncode == -signal.SIGTERM


def wait_for_status(process: subprocess.Popen[bytes], status: str) -> None:
    deadline = time.monotonic() + 30
    while psutil.Process(process.pid).status() != status:
        assert time.monotonic() < deadline
        time.sleep(0.01)
