"""Flower's programs: their environment, their commands, and how to stop them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import tomli_w

__all__ = [
    "find_processes",
    "flower_environment",
    "free_port",
    "insecure_connection",
    "is_running",
    "run_flwr",
    "stop_processes",
]

STOP_TIMEOUT = 20.0


def run_flwr(environment: Mapping[str, str], *command: str) -> dict[str, Any]:
    """Run a ``flwr`` command and return its JSON output.

    Raises
    ------
    RuntimeError
        If the command has failed.
    """
    done = subprocess.run(
        ["flwr", *command, "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^\{.*^\}", done.stdout, re.DOTALL | re.MULTILINE)
    output: dict[str, Any] = json.loads(found[0]) if found else {}
    if not output.get("success"):
        raise RuntimeError(
            f"flwr {command[0]} has failed: "
            f"{output.get('error-message') or done.stdout + done.stderr}"
        )
    return output


def find_processes(home: Path) -> set[int]:
    """Return the ids of all processes with this ``FLWR_HOME``, and their descendants.

    Ray's processes leave the process group but inherit the environment. A process that
    has changed its title has overwritten its environment, but it has a parent.
    """
    found = set()
    children: dict[int, set[int]] = {}
    for process in psutil.process_iter():
        # It may end, or belong to another user.
        with suppress(psutil.Error):
            children.setdefault(process.ppid(), set()).add(process.pid)
            if process.environ().get("FLWR_HOME") == str(home):
                found.add(process.pid)
    new = found
    while new := {child for pid in new for child in children.get(pid, ())} - found:
        found |= new
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and has a thread that has not ended."""
    try:
        process = psutil.Process(pid)
        # A process whose first thread has ended is reported as a zombie, even while
        # its other threads run.
        has_ended = process.status() == psutil.STATUS_ZOMBIE
        return not has_ended or bool(process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def stop_processes(home: Path, *processes: subprocess.Popen[Any]) -> None:
    """Stop processes, and all others with the same Flower home.

    First with SIGTERM, then with SIGKILL. Signals to this process are ignored
    meanwhile: an interrupted stop would leave processes behind.
    """
    with _signals_ignored():
        # The parent of a process is known only until the parent ends.
        pids = find_processes(home)
        for number in (signal.SIGTERM, signal.SIGKILL):
            pids |= {process.pid for process in processes} | find_processes(home)
            for pid in filter(is_running, pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if _wait_until_ended(home, pids, processes):
                return


def _wait_until_ended(
    home: Path, pids: set[int], processes: tuple[subprocess.Popen[Any], ...]
) -> bool:
    deadline = time.monotonic() + STOP_TIMEOUT
    while time.monotonic() < deadline:
        # poll() also collects the exit status; without it a zombie would remain.
        ended = [process.poll() is not None for process in processes]
        if all(ended) and not any(map(is_running, pids | find_processes(home))):
            return True
        time.sleep(0.1)
    return False


@contextmanager
def _signals_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def insecure_connection(port: int) -> str:
    """Return a Flower config whose only SuperLink listens on a local port."""
    connection = {"address": f"127.0.0.1:{port}", "insecure": True}
    return tomli_w.dumps({"superlink": {"default": "flfa", "flfa": connection}})


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs with ``home`` as Flower's home."""
    return {
        **os.environ,
        # flower-superlink finds Flower's other programs on PATH.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        # Ray would start workers before it knows what they need, and never use them.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def free_port() -> int:
    """Return a local port that no program listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
