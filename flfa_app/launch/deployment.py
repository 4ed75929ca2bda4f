"""A federation of real nodes on this machine, as ``docs/deployment.md`` sets one up.

A SuperLink with TLS that knows its nodes by their keys, a SuperNode for each part of
the data, all in one folder: the commands and the certificate script are those of the
guide, only the addresses differ.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import tomli_w

from flfa_app.data import OwnImages
from flfa_app.launch.processes import flwr, free_port
from flfa_app.launch.superlink import SuperLink, started

__all__ = ["CONNECTION", "Deployment", "local_deployment"]

CONNECTION = "prod"
"""The SuperLink's name in Flower's config, as in ``flwr run . prod``."""


@contextmanager
def local_deployment(source: Path, parts: Sequence[OwnImages]) -> Iterator[Deployment]:
    """Start a SuperLink and a SuperNode for each part; stop them, remove everything."""
    with (
        tempfile.TemporaryDirectory(prefix="flfa-") as home,
        started(Deployment(Path(home).resolve(), source, parts)) as deployment,
    ):
        yield deployment


class Deployment(SuperLink):
    """A SuperLink with SuperNodes of its own; use :func:`local_deployment`.

    Parameters
    ----------
    home : Path
        An empty folder: Flower's home, certificates, keys, data, logs.
    source : Path
        The app's checkout.
    parts : Sequence[OwnImages]
        The data of each node, which is told of no other.
    """

    def __init__(self, home: Path, source: Path, parts: Sequence[OwnImages]) -> None:
        super().__init__(home, source)
        self.address = f"127.0.0.1:{self.port}"
        self.certificates = home / "certificates"
        self.environment["FLFA_CACHE"] = str(home / "cache")
        self._script = source / "deploy" / "certificates.sh"
        self._data = [home / f"data-{i}.npz" for i in range(len(parts))]
        for file, part in zip(self._data, parts, strict=True):
            np.savez(file, images=part.images, labels=part.labels)
        connection = {
            "address": self.address,
            "root-certificates": str(self.certificates / "ca.crt"),
        }
        known = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(known))

    def start(self) -> None:
        """Start everything; nodes may still be on their way when this returns."""
        self._do(str(self._script), str(self.certificates), "127.0.0.1")
        super().start()
        for number, data in enumerate(self._data):
            key = self.new_key(f"node-{number}")
            self.register(key)
            self.start_node(key, f'partition-id={number} dataset-path="{data}"')

    def _start_superlink(self) -> None:
        certificates = self.certificates
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.home / "superlink.db")]
        command += ["--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(certificates / "ca.crt")]
        command += ["--ssl-certfile", str(certificates / "server.pem")]
        command += ["--ssl-keyfile", str(certificates / "server.key")]
        self.processes.append(self._begin(command, self.log))

    def new_key(self, name: str) -> Path:
        """Make a node's key; return the file of its private part."""
        file = self.home / name
        self._do(
            *("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", ""), "-f", file
        )
        return file

    def register(self, key: Path) -> str:
        """Tell the SuperLink of a node's key; return the id it gives the node."""
        command = ("supernode", "register", f"{key}.pub", CONNECTION)
        return str(flwr(self.environment, *command)["node-id"])

    def start_node(
        self, key: Path, node_config: str, address: str = ""
    ) -> subprocess.Popen[Any]:
        """Start a SuperNode, with a log beside its key; return its process.

        Parameters
        ----------
        key : Path
            The node's private key.
        node_config : str
            The node's number and data.
        address : str
            Of the SuperLink, if it is not to be called directly.
        """
        command = ["flower-supernode", "--superlink", address or self.address]
        command += ["--root-certificates", str(self.certificates / "ca.crt")]
        command += ["--auth-supernode-private-key", str(key)]
        command += ["--port", str(free_port()), "--node-config", node_config]
        node = self._begin(command, key.with_suffix(".log"))
        self.processes.append(node)
        return node

    def last_words(self, lines: int = 10) -> str:
        """Return the ends of all logs, for somebody who wonders what went wrong."""
        ends = []
        for log in sorted(self.home.glob("*.log")):
            plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
            end = [line for line in plain.splitlines() if line][-lines:]
            ends.append("\n".join([f"--- the end of {log.name}:", *end]))
        return "\n".join(ends)

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
        """Run the app on the SuperNodes to its end, good or bad; return the run's id.

        How many there are and what they compute with was said when they were started:
        ``nodes``, ``workers`` and ``gpus`` are for simulations.
        """
        file = self.home / f"run-config-{uuid4().hex}.toml"
        file.write_text(tomli_w.dumps({**run_config, "output-dir": str(output_dir)}))
        command = ["flwr", "run", str(self.app), CONNECTION, "--stream"]
        return self._follow([*command, "--run-config", str(file)], show)

    def _do(self, *command: str | Path) -> None:
        """Run a short command; raise with what it said if it has failed."""
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as problem:
            raise RuntimeError(f"{command[0]} is needed and not there") from problem
        except subprocess.CalledProcessError as problem:
            raise RuntimeError(
                f"{command[0]} has failed: {problem.stdout + problem.stderr}"
            ) from problem
