"""``flwr run`` on SuperNodes that hold parts of the run's data set, without TLS.

Each message is computed by a new process. Nodes with their own data: test_deployment.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from flfa_app.launch.processes import (
    find_processes,
    flower_environment,
    free_port,
    insecure_connection,
    run_flwr,
    stop_processes,
)
from tests.federation import ROOT, metrics, run_app

pytestmark = pytest.mark.e2e

KEYS: dict[str, Any] = {
    "num-server-rounds": 2,
    "local-epochs": 1,
    "min-available-nodes": 2,
}


@contextmanager
def running(home: Path, commands: dict[str, list[str]]) -> Iterator[None]:
    """Start Flower's programs, each with a log; stop them at the end."""
    processes = []
    try:
        for name, command in commands.items():
            with (home / f"{name}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        env=flower_environment(home),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield
    finally:
        stop_processes(home, *processes)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


def test_two_supernodes_give_the_result_of_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLFA_CACHE", str(tmp_path / "cache"))
    port = free_port()
    (tmp_path / "config.toml").write_text(insecure_connection(port))
    run_config, results = tmp_path / "run-config.toml", tmp_path / "out"
    run_config.write_text(tomli_w.dumps(KEYS | {"output-dir": str(results)}))
    commands = {"superlink": ["flower-superlink", "--insecure", "--port", str(port)]}
    for i in range(2):
        node_config = f"partition-id={i} num-partitions=2"
        commands[f"node{i}"] = [
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
            *("--port", str(free_port()), "--node-config", node_config),
        ]
    with running(tmp_path, commands):
        wait_for_port(port)
        environment = flower_environment(tmp_path)
        run = run_flwr(environment, "run", str(ROOT), "--run-config", str(run_config))
        deadline = time.monotonic() + 300
        status = ""
        while not status.startswith("finished") and time.monotonic() < deadline:
            time.sleep(2)
            listed = run_flwr(environment, "list", "--run-id", run["run-id"])
            status = listed["runs"][0]["status"]
    assert find_processes(tmp_path) == set()
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert status == "finished:completed", logs
    (found,) = results.iterdir()
    # The same partition, seed and order of summation: the same bits.
    simulated = run_app(tmp_path / "simulated", KEYS, nodes=2)
    assert metrics(found) == metrics(simulated)
    model = (simulated / "model.safetensors").read_bytes()
    assert (found / "model.safetensors").read_bytes() == model
