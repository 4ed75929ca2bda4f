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
    """Return the processes that have inherited a Flower home, and what they started.

    Ray's processes leave the process group, but they keep the environment; those that
    have changed their title have lost it, but they have a parent. Where there is no
    ``/proc`` none is found; a SuperLink stops what it has started.
    """
    mark = f"FLWR_HOME={home}".encode()
    found = set()
    children: dict[int, set[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end, or belong to someone else, while this is read.
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, set()).add(int(folder.name))
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    new = found
    while new := {child for pid in new for child in children.get(pid, ())} - found:
        found |= new
    return found


def stop(home: Path, *processes: subprocess.Popen[Any]) -> None:
    """Stop processes, and all others with the same Flower home.

    Nothing interrupts this: half of it would leave the other half running.
    """
    with _uninterrupted():
        _stop(home, *processes)


def _stop(home: Path, *processes: subprocess.Popen[Any]) -> None:
    # Once its parent is gone nothing shows to whom a process belongs.
    ours = processes_of(home)
    for number in (signal.SIGTERM, signal.SIGKILL):
        ours |= {process.pid for process in processes} | processes_of(home)
        for pid in filter(_runs, ours):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline:
            # Each is polled: nobody else takes note of its end.
            ended = [process.poll() is not None for process in processes]
            if all(ended) and not any(map(_runs, ours | processes_of(home))):
                return
            time.sleep(0.1)


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    folder = Path(f"/proc/{pid}")
    try:
        os.kill(pid, 0)
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        # A first thread that has ended leaves a process to the others.
        return state != "Z" or len(list((folder / "task").iterdir())) > 1
    except ProcessLookupError:
        return False
    except OSError:
        return not Path("/proc/self").exists()  # it has just ended, or who can say


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
        # Ray would start workers before it knows what they need, and never use them.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
