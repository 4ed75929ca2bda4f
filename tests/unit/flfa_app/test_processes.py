"""What was started is stopped, also what has hidden its origin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flfa_app.launch.processes import _runs, processes_of, stop

# Writes the process ids of itself, of a child without the environment in a session of
# its own, and of that one's child; both of those ignore the first signal.
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
    assert processes_of(tmp_path) == pids
    assert processes_of(tmp_path / "other") == set()
    # The two ignore SIGTERM, and when their parent has ended nothing leads to them.
    monkeypatch.setattr("flfa_app.launch.processes.STOP_TIMEOUT", 1.0)
    stop(tmp_path, tree)
    assert not any(map(_runs, pids))
    assert tree.returncode == -signal.SIGTERM
    assert processes_of(tmp_path) == set()


def test_a_process_that_has_ended_does_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    while _runs(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(process.pid)  # nobody has asked for its exit status yet
    process.wait()
    assert not _runs(process.pid)
    assert _runs(os.getpid())


# Its first thread ends at once, which makes it look dead; the second sleeps.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 30
        while ") Z " not in stat.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ") Z " in stat.read_text()
        assert _runs(process.pid)
        stop(tmp_path, process)
        assert process.returncode == -signal.SIGTERM
