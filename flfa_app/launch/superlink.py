"""A SuperLink for simulations that belongs to this process and ends with it.

``flwr run`` alone has four disadvantages for a launcher: it starts a SuperLink that
keeps running, it uses any SuperLink that answers on its port, it exits with 0 even if
the run has failed, and it searches every file of the project folder, the virtual
environment included, which takes ten seconds. A SuperLink of this module has a Flower
home and a port of its own and a copy of the app's files, streams the log of a run until
the run ends, and looks up its outcome.
"""

from __future__ import annotations

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

from flfa_app.launch.app_files import absolute_paths, copy_app, find_results
from flfa_app.launch.processes import (
    flower_environment,
    free_port,
    insecure_connection,
    run_flwr,
    stop_processes,
)
from flfa_app.launch.ray_cluster import start_ray, wait_for_address
from flfa_app.results.provenance import SOURCE

__all__ = ["RunOutcome", "SuperLink", "local_superlink", "running_superlink"]

START_TIMEOUT = 60.0
Link = TypeVar("Link", bound="SuperLink")


class RunOutcome(NamedTuple):
    """How a run has ended, and where its results are."""

    completed: bool
    details: str
    results: Path | None


@contextmanager
def local_superlink(source: Path, ray_workers: int = 0) -> Iterator[SuperLink]:
    """Start a SuperLink for the app in ``source``, with a temporary Flower home."""
    with (
        tempfile.TemporaryDirectory(prefix="flfa-") as home,
        running_superlink(
            SuperLink(Path(home).resolve(), source, ray_workers)
        ) as superlink,
    ):
        yield superlink


@contextmanager
def running_superlink(superlink: Link) -> Iterator[Link]:
    """Start a SuperLink; at the end stop it and every process it has started."""
    try:
        superlink.start()
        yield superlink
    finally:
        superlink.stopping = True
        stop_processes(superlink.home, *superlink.processes, *superlink.log_streams)
        for process in superlink.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


class SuperLink:
    """A SuperLink in simulation mode; use :func:`local_superlink`.

    Parameters
    ----------
    home : Path
        An empty folder: the Flower home and the working directory of every process
        started here. Workers must not find modules to import in it.
    source : Path
        The app's checkout. It is copied once, so later edits do not affect runs.
    ray_workers : int
        If not 0, one Ray cluster with this number of workers serves all runs. Each run
        then starts seconds faster, but only one can run at a time.
    """

    def __init__(self, home: Path, source: Path, ray_workers: int = 0) -> None:
        self.home = home
        self.port = free_port()
        self.log = home / "superlink.log"
        self.stopping = False
        self.log_streams: set[subprocess.Popen[str]] = set()
        self.environment = {**flower_environment(home), SOURCE: str(source)}
        self.app = copy_app(source, home / "app")
        (home / "config.toml").write_text(insecure_connection(self.port))
        self.ray_workers = ray_workers
        self.processes: list[subprocess.Popen[Any]] = []

    def start(self) -> None:
        """Start all processes; return when the SuperLink accepts connections."""
        if self.ray_workers:
            ray = start_ray(self.ray_workers, self.environment, self.home)
            self.processes.append(ray)
            self.environment["RAY_ADDRESS"] = wait_for_address(ray, self.home)
        self.processes.append(self._start_process(self._command(), self.log))
        self._wait_for_port()

    @property
    def is_alive(self) -> bool:
        """Whether no process that runs need has ended."""
        return all(process.poll() is None for process in self.processes)

    def run(self, *, output_dir: Path, **options: Any) -> RunOutcome:
        """Run the app until it ends; the options are those of :meth:`stream_run`."""
        run_id = self.stream_run(output_dir=output_dir, **options)
        return self.outcome(run_id, output_dir)

    def stream_run(
        self,
        *,
        run_config: Mapping[str, Any],
        nodes: int,
        workers: int,
        gpus: float = 0.0,
        output_dir: Path,
        on_log_line: Callable[[str], None],
    ) -> str:
        """Run the app until it ends, whether it succeeds or fails; return the run's id.

        Several threads may each stream a run at the same time.

        Parameters
        ----------
        run_config : Mapping[str, Any]
            Overrides of the app's run config.
        nodes, workers : int
            Simulated nodes, and the number of them that compute at the same time.
        gpus : float
            Share of a GPU for each worker.
        output_dir : Path
            The app's ``output-dir``; :func:`find_results` finds the run's folder in it.
        on_log_line : Callable[[str], None]
            Is called with each line of the run's log.
        """
        federation = (
            f"num-supernodes={nodes} client-resources-num-cpus=1 "
            f"client-resources-num-gpus={gpus}"
        )
        if self.ray_workers == 0:
            federation += f" init-args-num-cpus={workers}"
        elif workers != self.ray_workers:
            raise ValueError(f"Ray has {self.ray_workers} workers, not {workers}")
        command = ["flwr", "run", str(self.app), "--stream"]
        command += ["--federation-config", federation]
        command += self._run_config_option(absolute_paths(run_config), output_dir)
        return self._stream(command, on_log_line)

    def outcome(self, run_id: str, output_dir: Path) -> RunOutcome:
        """Return how a run has ended, as the SuperLink reports it."""
        state = run_flwr(self.environment, "list", "--run-id", run_id)["runs"][0]
        return RunOutcome(
            completed=state["status"] == "finished:completed",
            details=f"{state['status']} {state.get('status-details') or ''}".strip(),
            results=find_results(run_id, output_dir),
        )

    def _command(self) -> list[str]:
        command = ["flower-superlink", "--insecure", "--simulation"]
        command += ["--isolation", "subprocess"]
        return [*command, "--host", "127.0.0.1", "--port", str(self.port)]

    def _start_process(
        self, command: Sequence[str], log: Path
    ) -> subprocess.Popen[Any]:
        with log.open("wb") as file:
            return subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.home,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to this process, which then stops the others.
                start_new_session=True,
            )

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while self.is_alive and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the SuperLink has not started:\n{self.log.read_text()}")

    def _run_config_option(
        self, run_config: Mapping[str, Any], output_dir: Path
    ) -> list[str]:
        # One file, because Flower accepts either a file or keys, not both. Every run
        # has its own, because several may start at the same time.
        file = self.home / f"run-config-{uuid4().hex}.toml"
        file.write_text(tomli_w.dumps({**run_config, "output-dir": str(output_dir)}))
        return ["--run-config", str(file)]

    def _stream(self, command: list[str], on_log_line: Callable[[str], None]) -> str:
        """Start a run and pass on its log until it ends; return the run's id."""
        run_id = ""
        lines: list[str] = []
        with subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # see _start_process
        ) as process:
            self.log_streams.add(process)
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if run_id:
                        on_log_line(line.rstrip("\n"))
                    elif found := re.search(r"Successfully started run (\d+)", line):
                        run_id = found[1]
                    else:
                        lines.append(line)
            finally:
                process.terminate()
                self.log_streams.discard(process)
        if not run_id:
            raise RuntimeError(f"flwr run has failed: {''.join(lines).strip()}")
        return run_id
