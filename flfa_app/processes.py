"""Flower's programs: their environment, their answers, and how to stop them all."""

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

import tomli_w

__all__ = [
    "connection_to",
    "flwr",
    "free_port",
    "own_environment",
    "processes_of",
    "stop",
]

STOP_TIMEOUT = 20.0


def flwr(environment: Mapping[str, str], *command: str) -> dict[str, Any]:
    """Run a ``flwr`` command and return its answer; raise if it has failed."""
    done = subprocess.run(
        ["flwr", *command, "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^\{.*^\}", done.stdout, re.DOTALL | re.MULTILINE)
    answer: dict[str, Any] = json.loads(found[0]) if found else {}
    if not answer.get("success"):
        raise RuntimeError(
            f"flwr {command[0]} has failed: "
            f"{answer.get('error-message') or done.stdout + done.stderr}"
        )
    return answer


def processes_of(home: Path) -> set[int]:
    """Return the processes that have inherited a Flower home, by process id.

    Ray's processes leave the process group, but they keep the environment. Where there
    is no ``/proc`` none is found; a SuperLink stops what it has started.
    """
    mark = f"FLWR_HOME={home}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end, or belong to someone else, while this is read.
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def stop(home: Path, *processes: subprocess.Popen[Any]) -> None:
    """Stop processes, and all others with the same Flower home.

    Nothing interrupts this: half of it would leave the other half running.
    """
    with _uninterrupted():
        _stop(home, *processes)


def _stop(home: Path, *processes: subprocess.Popen[Any]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        ours = {process.pid for process in processes if process.poll() is None}
        for pid in ours | processes_of(home):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline:
            ended = all(process.poll() is not None for process in processes)
            if ended and not processes_of(home):
                return
            time.sleep(0.1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread, and so are their handlers
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def connection_to(port: int) -> str:
    """Return a Flower config whose only SuperLink is the one on this port."""
    connection = {"address": f"127.0.0.1:{port}", "insecure": True}
    return tomli_w.dumps({"superlink": {"default": "own", "own": connection}})


def own_environment(home: Path) -> dict[str, str]:
    """Return the environment for Flower's programs with a home of their own."""
    return {
        **os.environ,
        # The programs of this environment first: flower-superlink starts others.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
