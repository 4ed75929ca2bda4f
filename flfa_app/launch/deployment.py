"""A federation of real nodes on this machine, as ``docs/deployment.md`` sets one up.

A SuperLink with TLS and one SuperNode for each part of the data, all in one folder.
Commands and certificate script are those of the guide; only the addresses differ.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from flfa_app.data.node_data import NodeData
from flfa_app.launch.processes import free_port, run_flwr
from flfa_app.launch.run_log import strip_colours
from flfa_app.launch.superlink import SuperLink, running_superlink

__all__ = ["CONNECTION", "Deployment", "local_deployment"]

CONNECTION = "prod"
"""The SuperLink's name in Flower's config, as in ``flwr run . prod``."""


@contextmanager
def local_deployment(source: Path, images: Sequence[NodeData]) -> Iterator[Deployment]:
    """Start a SuperLink and a SuperNode for each node's images, in a temporary folder.

    At the end every process is stopped and the folder removed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="flfa-") as home,
        running_superlink(
            Deployment(Path(home).resolve(), source, images)
        ) as deployment,
    ):
        yield deployment


class Deployment(SuperLink):
    """A SuperLink with SuperNodes of its own; use :func:`local_deployment`.

    Parameters
    ----------
    home : Path
        An empty folder: Flower home, certificates, keys, data, logs.
    source : Path
        The app's checkout.
    images : Sequence[NodeData]
        The data of each node. A node is given the path of its own data only.
    """

    def __init__(self, home: Path, source: Path, images: Sequence[NodeData]) -> None:
        super().__init__(home, source)
        self.address = f"127.0.0.1:{self.port}"
        self.certificates = home / "certificates"
        self.environment["FLFA_CACHE"] = str(home / "cache")
        self._certificate_script = source / "deploy" / "certificates.sh"
        self._data = [home / f"data-{i}.npz" for i in range(len(images))]
        for file, node in zip(self._data, images, strict=True):
            np.savez(file, images=node.images, labels=node.labels)
        connection = {
            "address": self.address,
            "root-certificates": str(self.certificates / "ca.crt"),
        }
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(config))

    def start(self) -> None:
        """Start all processes; a node may not have connected yet when this returns."""
        _run_tool(str(self._certificate_script), str(self.certificates), "127.0.0.1")
        super().start()
        for number, data in enumerate(self._data):
            key = self.create_key(f"node-{number}")
            self.register(key)
            self.start_node(key, f'partition-id={number} dataset-path="{data}"')

    def _command(self) -> list[str]:
        certificates = self.certificates
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.home / "superlink.db")]
        command += ["--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(certificates / "ca.crt")]
        command += ["--ssl-certfile", str(certificates / "server.pem")]
        return [*command, "--ssl-keyfile", str(certificates / "server.key")]

    def create_key(self, name: str) -> Path:
        """Create the key pair of a node; return the file of the private key."""
        file = self.home / name
        _run_tool(
            *("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", ""), "-f", file
        )
        return file

    def register(self, key: Path) -> str:
        """Register a node's public key; return the id that the SuperLink assigns."""
        command = ("supernode", "register", f"{key}.pub", CONNECTION)
        return str(run_flwr(self.environment, *command)["node-id"])

    def start_node(
        self, key: Path, node_config: str, address: str = ""
    ) -> subprocess.Popen[Any]:
        """Start a SuperNode whose log is written beside its key; return its process.

        Parameters
        ----------
        key : Path
            The node's private key.
        node_config : str
            The node's ``--node-config``: partition and data.
        address : str
            Where the node connects to, if not directly to the SuperLink.
        """
        command = ["flower-supernode", "--superlink", address or self.address]
        command += ["--root-certificates", str(self.certificates / "ca.crt")]
        command += ["--auth-supernode-private-key", str(key)]
        command += ["--port", str(free_port()), "--node-config", node_config]
        node = self._start_process(command, key.with_suffix(".log"))
        self.processes.append(node)
        return node

    def log_tails(self, lines: int = 10) -> str:
        """Return the last lines of all logs, for the report of a failed run."""
        tails = []
        for log in sorted(self.home.glob("*.log")):
            plain = strip_colours(log.read_text(errors="replace"))
            tail = [line for line in plain.splitlines() if line][-lines:]
            tails.append("\n".join([f"--- the end of {log.name}:", *tail]))
        return "\n".join(tails)

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
        """Run the app on the SuperNodes until it ends; return the run's id.

        ``nodes``, ``workers`` and ``gpus`` have no effect: they describe simulations.
        """
        command = ["flwr", "run", str(self.app), CONNECTION, "--stream"]
        command += self._run_config_option(run_config, output_dir)
        return self._stream(command, on_log_line)


def _run_tool(*command: str | Path) -> None:
    """Run a short command; raise an error with its output if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as problem:
        raise RuntimeError(
            f"{command[0]} is not installed, or not on PATH"
        ) from problem
    except subprocess.CalledProcessError as problem:
        raise RuntimeError(
            f"{command[0]} has failed: {problem.stdout + problem.stderr}"
        ) from problem
