"""``kill -9`` of the ServerApp and of a worker of a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flfa_app.launch.superlink import SuperLink, local_superlink
from tests.faults.kill_resume import WORKERS, kill_and_resume
from tests.faults.streamed_run import StreamedRun, find_by_command, kill
from tests.federation import ROOT, metrics, run_app

pytestmark = pytest.mark.e2e

LONG: dict[str, Any] = {"num-server-rounds": 400, "local-epochs": 1, "pictures": False}


@pytest.fixture(scope="module")
def superlink() -> Iterator[SuperLink]:
    with local_superlink(ROOT, WORKERS) as link:
        yield link


def test_the_server_app_killed_at_a_random_moment(
    superlink: SuperLink, tmp_path: Path
) -> None:
    """With a method whose clients have a state; ``kill_resume`` tries 20 moments."""
    (trial,) = kill_and_resume(superlink, tmp_path, 1, seed=5, algorithm="scaffold")
    assert trial.same_bits


def test_a_worker_of_the_simulation_killed(
    superlink: SuperLink, tmp_path: Path
) -> None:
    """Flower would send it messages for ever: the run stops and can be resumed."""
    run = StreamedRun(superlink, tmp_path, LONG, nodes=6)
    run.wait_for_rounds(2)
    actors = run.wait_for(lambda: find_by_command(superlink, "ray::ClientAppActor"))
    kill(actors.pop())
    run.join()
    assert not superlink.outcome(run.run_id, tmp_path).completed
    done = len(run.rows)
    assert "the worker that computed partition" in run.log
    assert f"round-{done:06d}.json" in run.log

    keys = LONG | {"num-server-rounds": done + 2}
    resumed = StreamedRun(superlink, tmp_path, keys | {"resume": "auto"}, nodes=6)
    resumed.join()
    outcome = superlink.outcome(resumed.run_id, tmp_path)
    assert outcome.completed, resumed.log
    assert outcome.results is not None
    undisturbed = run_app(tmp_path / "undisturbed", keys, nodes=6)
    assert metrics(outcome.results) == metrics(undisturbed)
