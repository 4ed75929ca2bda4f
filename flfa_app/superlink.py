"""A SuperLink for simulations that belongs to this process and ends with it.

``flwr run`` starts a SuperLink that stays, uses whatever SuperLink answers on its port,
returns at once and exits with 0 even when the run has failed. Here a SuperLink has its
own Flower home and port, a run is followed to its end and its outcome looked up.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

__all__ = [
    "Outcome",
    "SuperLink",
    "connection_to",
    "flwr",
    "free_port",
    "local_superlink",
    "own_environment",
    "processes_of",
    "stop",
]

SOURCE = "FLFA_SOURCE"
"""The environment variable that tells an app where its checkout is."""
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0


class Outcome(NamedTuple):
    """How a run has ended, and where its results are."""

    completed: bool
    details: str
    results: Path | None


@contextmanager
def local_superlink(source: Path) -> Iterator[SuperLink]:
    """Start a SuperLink for the app in ``source``; stop it and all it has started."""
    with tempfile.TemporaryDirectory(prefix="flfa-") as home:
        superlink = SuperLink(Path(home).resolve(), source)
        try:
            superlink.wait_until_ready()
            yield superlink
        finally:
            stop(superlink.home, superlink.process)


class SuperLink:
    """A SuperLink in simulation mode; use :func:`local_superlink`.

    Parameters
    ----------
    home : Path
        An empty folder, used as Flower's home by everything that is started here. It is
        also the working directory: there is nothing in it that a worker could import.
    source : Path
        The app's checkout, for the commit in ``config.json``.
    """

    def __init__(self, home: Path, source: Path) -> None:
        self.home = home
        self.port = free_port()
        self.log = home / "superlink.log"
        self.environment = {**own_environment(home), SOURCE: str(source)}
        (home / "config.toml").write_text(connection_to(self.port))
        command = ["flower-superlink", "--insecure", "--simulation"]
        command += ["--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process, which then stops the others in order.
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Return when the port answers."""
        deadline = time.monotonic() + START_TIMEOUT
        while self.process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the SuperLink has not started:\n{self.log.read_text()}")

    def run(
        self,
        app: Path,
        *,
        run_config: Mapping[str, Any],
        nodes: int,
        workers: int,
        gpus: float = 0.0,
        output_dir: Path,
        show: Callable[[str], None],
    ) -> Outcome:
        """Run an app on simulated nodes to its end.

        Parameters
        ----------
        app : Path
            The app's folder.
        run_config : Mapping[str, Any]
            Overrides of the app's config.
        nodes, workers : int
            Simulated nodes, and how many of them compute at the same time.
        gpus : float
            Share of a GPU for each of them.
        output_dir : Path
            The app's ``output-dir``; the results are in a folder named after the run.
        show : Callable[[str], None]
            Takes each line of the log.
        """
        federation = (
            f"num-supernodes={nodes} client-resources-num-cpus=1 "
            f"init-args-num-cpus={workers} client-resources-num-gpus={gpus}"
        )
        overrides = {**run_config, "output-dir": str(output_dir)}
        # One file, because Flower takes either a file or keys, not both.
        file = self.home / "run-config.toml"
        file.write_text(tomli_w.dumps(overrides))
        command = ["run", str(app), "--run-config", str(file)]
        command += ["--federation-config", federation]
        run_id = flwr(self.environment, *command)["run-id"]
        self._follow(run_id, show)
        state = flwr(self.environment, "list", "--run-id", run_id)["runs"][0]
        return Outcome(
            completed=state["status"] == "finished:completed",
            details=f"{state['status']} {state.get('status-details') or ''}".strip(),
            results=next(output_dir.glob(f"*-{run_id}"), None),
        )

    def _follow(self, run_id: str, show: Callable[[str], None]) -> None:
        command = ["flwr", "log", run_id, "--stream"]
        with subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as log:
            assert log.stdout is not None
            try:
                for line in log.stdout:
                    show(line.rstrip("\n"))
            finally:
                log.terminate()


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


def stop(home: Path, *processes: subprocess.Popen[bytes]) -> None:
    """Stop processes, and all others with the same Flower home.

    Nothing interrupts this: half of it would leave the other half running.
    """
    with _uninterrupted():
        _stop(home, *processes)


def _stop(home: Path, *processes: subprocess.Popen[bytes]) -> None:
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
