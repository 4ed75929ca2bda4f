"""A SuperLink for simulations that belongs to this process and ends with it.

``flwr run`` starts a SuperLink that stays, uses whatever SuperLink answers on its port,
returns at once and exits with 0 even when the run has failed. Here a SuperLink has its
own Flower home and port, a run is followed to its end and its outcome looked up.
"""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import tomli_w

from flfa_app.processes import connection_to, flwr, free_port, own_environment, stop

__all__ = ["SOURCE", "Outcome", "SuperLink", "local_superlink"]

SOURCE = "FLFA_SOURCE"
"""The environment variable that tells an app where its checkout is."""
START_TIMEOUT = 60.0


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
            superlink.stopping = True
            stop(superlink.home, superlink.process, *superlink.followers)


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
        self.stopping = False
        self.followers: set[subprocess.Popen[str]] = set()
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
        """Run an app on simulated nodes to its end; see :meth:`follow`."""
        run_id = self.follow(
            app,
            run_config=run_config,
            nodes=nodes,
            workers=workers,
            gpus=gpus,
            output_dir=output_dir,
            show=show,
        )
        return self.outcome(run_id, output_dir)

    def follow(
        self,
        app: Path,
        *,
        run_config: Mapping[str, Any],
        nodes: int,
        workers: int,
        gpus: float = 0.0,
        output_dir: Path,
        show: Callable[[str], None],
    ) -> str:
        """Run an app on simulated nodes to its end, good or bad; return the run's id.

        Runs may be followed at the same time, each by a thread of its own.

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
        # One file, because Flower takes either a file or keys, not both; a file for
        # every run, because several may start at the same time.
        file = self.home / f"run-config-{uuid4().hex}.toml"
        file.write_text(tomli_w.dumps(overrides))
        command = ["flwr", "run", str(app), "--stream", "--run-config", str(file)]
        command += ["--federation-config", federation]
        return self._follow(command, show)

    def outcome(self, run_id: str, output_dir: Path) -> Outcome:
        """Ask the SuperLink how a run has ended."""
        state = flwr(self.environment, "list", "--run-id", run_id)["runs"][0]
        return Outcome(
            completed=state["status"] == "finished:completed",
            details=f"{state['status']} {state.get('status-details') or ''}".strip(),
            results=next(output_dir.glob(f"*-{run_id}"), None),
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
