"""A SuperLink for simulations that belongs to this process and ends with it.

``flwr run`` starts a SuperLink that stays, uses whatever SuperLink answers on its port,
returns at once and exits with 0 even when the run has failed. Here a SuperLink has its
own Flower home and port, a run is followed to its end and its outcome looked up. It
also looks at every file under the app's folder, a virtual environment and all, which
takes ten seconds: here it is given a copy of what belongs to the app.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import tomli_w

from flfa_app.config import AUTO, KEYS
from flfa_app.launch.processes import (
    connection_to,
    flwr,
    free_port,
    own_environment,
    stop,
)
from flfa_app.launch.ray_cluster import address_of, start_ray
from flfa_app.launch.staging import staged
from flfa_app.results.provenance import SOURCE

__all__ = [
    "Outcome",
    "SuperLink",
    "absolute_paths",
    "local_superlink",
    "results_of",
    "started",
]

START_TIMEOUT = 60.0
Link = TypeVar("Link", bound="SuperLink")


def results_of(run_id: str, output_dir: Path) -> Path | None:
    """Return the directory of a run's results, if it has begun to write some."""
    for file in output_dir.glob("*/config.json"):
        # A run that was resumed has its first one's name.
        if file.parent.name.endswith(f"-{run_id}") or run_id in json.loads(
            file.read_text()
        ).get("run-ids", ()):
            return file.parent
    return None


def absolute_paths(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config whose paths mean the same in the SuperLink's folder as here."""
    return {
        key: str(Path(value).expanduser().resolve())
        if KEYS[key].is_path and value not in ("", AUTO)
        else value
        for key, value in run_config.items()
    }


class Outcome(NamedTuple):
    """How a run has ended, and where its results are."""

    completed: bool
    details: str
    results: Path | None


@contextmanager
def local_superlink(source: Path, kept_workers: int = 0) -> Iterator[SuperLink]:
    """Start a SuperLink for the app in ``source``; stop it and all it has started."""
    with (
        tempfile.TemporaryDirectory(prefix="flfa-") as home,
        started(SuperLink(Path(home).resolve(), source, kept_workers)) as superlink,
    ):
        yield superlink


@contextmanager
def started(superlink: Link) -> Iterator[Link]:
    """Start a SuperLink; stop it and all it has started."""
    try:
        superlink.start()
        yield superlink
    finally:
        superlink.stopping = True
        stop(superlink.home, *superlink.processes, *superlink.followers)
        for process in superlink.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


class SuperLink:
    """A SuperLink in simulation mode; use :func:`local_superlink`.

    Parameters
    ----------
    home : Path
        An empty folder, used as Flower's home by everything that is started here. It is
        also the working directory: there is nothing in it that a worker could import.
    source : Path
        The app's checkout. All runs are of the app as it is now, whatever is edited
        while they go on.
    kept_workers : int
        If not 0, Ray is started once, for this many workers, and not for every run:
        each is seconds faster, and only one can go on at a time.
    """

    def __init__(self, home: Path, source: Path, kept_workers: int = 0) -> None:
        self.home = home
        self.port = free_port()
        self.log = home / "superlink.log"
        self.stopping = False
        self.followers: set[subprocess.Popen[str]] = set()
        self.environment = {**own_environment(home), SOURCE: str(source)}
        self.app = staged(source, home / "app")
        (home / "config.toml").write_text(connection_to(self.port))
        self.kept_workers = kept_workers
        self.processes: list[subprocess.Popen[Any]] = []

    def start(self) -> None:
        """Start everything; return when the SuperLink answers."""
        if self.kept_workers:
            ray = start_ray(self.kept_workers, self.environment, self.home)
            self.processes.append(ray)
            self.environment["RAY_ADDRESS"] = address_of(ray, self.home)
        self._start_superlink()
        self._wait_until_ready()

    @property
    def alive(self) -> bool:
        """Whether everything that a run needs goes on."""
        return all(process.poll() is None for process in self.processes)

    def _start_superlink(self) -> None:
        command = ["flower-superlink", "--insecure", "--simulation"]
        command += ["--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self.processes.append(self._begin(command, self.log))

    def _begin(self, command: Sequence[str], log: Path) -> subprocess.Popen[Any]:
        with log.open("wb") as file:
            return subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.home,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process, which then stops the others in order.
                start_new_session=True,
            )

    def _wait_until_ready(self) -> None:
        """Return when the port answers."""
        deadline = time.monotonic() + START_TIMEOUT
        while self.alive and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the SuperLink has not started:\n{self.log.read_text()}")

    def run(self, *, output_dir: Path, **how: Any) -> Outcome:
        """Run the app on simulated nodes to its end; see :meth:`follow`."""
        run_id = self.follow(output_dir=output_dir, **how)
        return self.outcome(run_id, output_dir)

    def follow(
        self,
        *,
        run_config: Mapping[str, Any],
        nodes: int,
        workers: int,
        gpus: float = 0.0,
        output_dir: Path,
        show: Callable[[str], None],
    ) -> str:
        """Run the app on simulated nodes to its end, good or bad; return the run's id.

        Runs may be followed at the same time, each by a thread of its own.

        Parameters
        ----------
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
            f"client-resources-num-gpus={gpus}"
        )
        if self.kept_workers == 0:
            federation += f" init-args-num-cpus={workers}"
        elif workers != self.kept_workers:
            raise ValueError(f"Ray has {self.kept_workers} workers, not {workers}")
        overrides = {**absolute_paths(run_config), "output-dir": str(output_dir)}
        # One file, because Flower takes either a file or keys, not both; a file for
        # every run, because several may start at the same time.
        file = self.home / f"run-config-{uuid4().hex}.toml"
        file.write_text(tomli_w.dumps(overrides))
        command = ["flwr", "run", str(self.app), "--stream", "--run-config", str(file)]
        command += ["--federation-config", federation]
        return self._follow(command, show)

    def outcome(self, run_id: str, output_dir: Path) -> Outcome:
        """Ask the SuperLink how a run has ended."""
        state = flwr(self.environment, "list", "--run-id", run_id)["runs"][0]
        return Outcome(
            completed=state["status"] == "finished:completed",
            details=f"{state['status']} {state.get('status-details') or ''}".strip(),
            results=results_of(run_id, output_dir),
        )

    def _follow(self, command: list[str], show: Callable[[str], None]) -> str:
        """Start a run and hand on its log until it ends; return its id."""
        run_id = ""
        lines: list[str] = []
        with subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # as the SuperLink
        ) as process:
            self.followers.add(process)
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if run_id:
                        show(line.rstrip("\n"))
                    elif found := re.search(r"Successfully started run (\d+)", line):
                        run_id = found[1]
                    else:
                        lines.append(line)
            finally:
                process.terminate()
                self.followers.discard(process)
        if not run_id:
            raise RuntimeError(f"flwr run has failed: {''.join(lines).strip()}")
        return run_id
