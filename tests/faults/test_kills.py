"""``kill -9`` of everything there is: the ServerApp, a worker, a node, a ClientApp."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flfa_app.config import RunConfig
from flfa_app.launch.demo import node_images
from flfa_app.launch.deployment import local_deployment
from flfa_app.launch.superlink import local_superlink
from tests.faults.kill_resume import kill_and_resume
from tests.faults.processes import Followed, processes
from tests.federation import ROOT, default_keys, metrics, run_app

pytestmark = pytest.mark.e2e

LONG: dict[str, Any] = {"num-server-rounds": 400, "local-epochs": 1, "pictures": False}


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def all_there(row: dict[str, Any]) -> bool:
    return row["participants"] == [0, 1, 2] and row["failed"] == []


def test_the_server_app_killed_at_random_moments(tmp_path: Path) -> None:
    """Two of the script's twenty, with a method whose clients keep a state."""
    shots = kill_and_resume(tmp_path, times=2, seed=5, algorithm="scaffold")
    assert [shot.same for shot in shots] == [True, True]


def test_a_worker_of_the_simulation_killed(tmp_path: Path) -> None:
    """Flower would go on with the dead one for ever: the run stops, and can go on."""
    with local_superlink(ROOT, ray_workers=2) as superlink:
        run = Followed(superlink, tmp_path, LONG, nodes=6)
        run.wait_for_rounds(2)
        kill(run.wait_for(lambda: processes(superlink, "ray::ClientAppActor")).pop())
        run.join()
        assert not superlink.outcome(run.run_id, tmp_path).completed
        done = len(run.rows)
        assert "the worker that computed partition" in run.log
        assert f"round-{done:06d}.json" in run.log
        again = LONG | {"resume": "auto", "num-server-rounds": done + 2}
        more = Followed(superlink, tmp_path, again, nodes=6)
        more.join()
        outcome = superlink.outcome(more.run_id, tmp_path)
        assert outcome.completed, more.log
        assert outcome.results is not None
    whole = run_app(tmp_path / "whole", LONG | {"num-server-rounds": done + 2}, nodes=6)
    assert metrics(outcome.results) == metrics(whole)


@pytest.mark.needs("openssl", "ssh-keygen")
def test_real_nodes_killed_one_after_the_other(tmp_path: Path) -> None:
    """Node 2 goes and comes back, node 1 loses a ClientApp, then the ServerApp dies."""
    keys = LONG | {
        "min-available-nodes": 3,
        "fraction-train": 1.0,
        "round-timeout": 30.0,
    }
    parts = node_images(RunConfig.parse(default_keys()), 3)
    with local_deployment(ROOT, parts) as deployment:
        run = Followed(deployment, tmp_path, keys, nodes=3)
        run.wait_for_rounds(1)
        _, _, _, node = deployment.processes  # the SuperLink, then the nodes
        kill(node.pid)
        run.wait_for(lambda: run.rows[-1]["failed"] == [2])
        run.wait_for(lambda: "continues without partition 2" in run.log)

        data = f'partition-id=2 dataset-path="{deployment.home / "data-2.npz"}"'

        def is_back() -> bool:
            # As systemd would: Flower refuses it until it has noticed that it was gone.
            nonlocal node
            if node.poll() is not None:
                deployment.processes.remove(node)
                node = deployment.start_node(deployment.home / "node-2", data)
            return all_there(run.rows[-1])

        run.wait_for(is_back)

        before = len(run.rows)
        old = processes(deployment, "flwr-clientapp")
        # One that has just begun: another may have done its work already.
        kill(run.wait_for(lambda: processes(deployment, "flwr-clientapp") - old).pop())
        run.wait_for(lambda: any(len(row["failed"]) == 1 for row in run.rows[before:]))
        run.wait_for(lambda: all_there(run.rows[-1]))

        kill(*processes(deployment, "flwr-serverapp"))
        run.abandon()
        done = len(run.rows)
        # The nodes may still be busy with the run that has died.
        again = keys | {"resume": "auto", "num-server-rounds": done + 1}
        again |= {"round-timeout": 150.0}
        more = Followed(deployment, tmp_path, again, nodes=3)
        more.join(timeout=300)
        assert deployment.outcome(more.run_id, tmp_path).completed, more.log
    assert [row["round"] for row in more.rows] == list(range(1, done + 2))
