"""``kill -9`` of a SuperNode, a ClientApp and the ServerApp of a deployment."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from flfa_app.config import RunConfig
from flfa_app.launch.demo import node_images
from flfa_app.launch.deployment import local_deployment
from tests.faults.streamed_run import StreamedRun, find_by_command, kill
from tests.federation import ROOT, default_keys

pytestmark = [pytest.mark.e2e, pytest.mark.needs("openssl", "ssh-keygen")]


def all_took_part(row: dict[str, Any]) -> bool:
    return row["participants"] == [0, 1, 2] and row["failed"] == []


def client_apps(node: subprocess.Popen[Any]) -> list[int]:
    """The ClientApps that a SuperNode has started."""
    found = []
    for process in psutil.Process(node.pid).children(recursive=True):
        with suppress(psutil.Error):  # it may have ended
            if "flwr-clientapp" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_real_nodes_killed_one_after_the_other(tmp_path: Path) -> None:
    """Node 2 is killed and returns, then ClientApps of node 1, then the ServerApp."""
    keys: dict[str, Any] = {
        "num-server-rounds": 400,
        "local-epochs": 1,
        "pictures": False,
        "min-available-nodes": 3,
        "fraction-train": 1.0,
        # A ClientApp needs seconds to start, and more on a busy machine.
        "round-timeout": 60.0,
    }
    images = node_images(RunConfig.parse(default_keys()), 3)
    with local_deployment(ROOT, images) as deployment:
        run = StreamedRun(deployment, tmp_path, keys, nodes=3)
        run.wait_for_rounds(1)
        _, _, _, node = deployment.processes  # the SuperLink, then the nodes
        kill(node.pid)
        run.wait_for(lambda: run.rows[-1]["failed"] == [2])
        run.wait_for(lambda: "continues without partition 2" in run.log)

        data = f'partition-id=2 dataset-path="{deployment.home / "data-2.npz"}"'

        def has_returned() -> bool:
            # Restart it as systemd would: Flower refuses it until the heartbeat of the
            # killed process is overdue.
            nonlocal node
            if node.poll() is not None:
                deployment.processes.remove(node)
                node = deployment.start_node(deployment.home / "node-2", data)
            return all_took_part(run.rows[-1])

        run.wait_for(has_returned)

        done = len(run.rows)

        def node_1_has_failed() -> bool:
            # Flower may start another ClientApp in the place of a killed one.
            kill(*client_apps(deployment.processes[2]))
            return any(row["failed"] == [1] for row in run.rows[done:])

        run.wait_for(node_1_has_failed)
        run.wait_for(lambda: all_took_part(run.rows[-1]))

        kill(*find_by_command(deployment, "flwr-serverapp"))
        run.abandon()
        done = len(run.rows)
        # The nodes may still be busy with the killed run.
        keys |= {"resume": "auto", "num-server-rounds": done + 1}
        keys |= {"round-timeout": 150.0}
        resumed = StreamedRun(deployment, tmp_path, keys, nodes=3)
        resumed.join(timeout=300)
        assert deployment.outcome(resumed.run_id, tmp_path).completed, resumed.log
    assert [row["round"] for row in resumed.rows] == list(range(1, done + 2))
