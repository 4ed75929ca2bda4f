"""Corrupted replies: none ends the run, none is aggregated, none leaves a trace.

The run is compared with one in which the same clients fail in the same rounds. The
comparison fails without any one of the checks of ``strategies/checks.py`` and
``server/reply_checks.py``: records, names, order, shape, type, kind, magic bytes,
header, size, finite values, norm, names of the metrics, finite metrics, weight,
partition, number of images.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from flfa_app import server_app
from tests.faults.corrupt import (
    CORRUPTIONS,
    STEP_LENGTHS,
    CorruptingGrid,
    Corruption,
)
from tests.federation import InProcessGrid, default_keys, metrics

NODES, BAD = 24, 20  # of 24 replies in a round 20 are corrupted
KEYS = {
    "fraction-train": 1.0,
    "train-fraction": 0.2,
    "partitioner": "iid",
    "local-epochs": 1,
    "batch-size": 8,
    "norm": "batch",  # buffers and counters as well
    "pictures": False,
    "checkpoint-every": 0,
    "max-update-norm": 50.0,
}
# The checks are the same for every method; one of each kind is enough for another.
ONE_OF_EACH_KIND = list(
    {corruption.kind: corruption for corruption in CORRUPTIONS}.values()
)
Plan = Mapping[tuple[int, int], Corruption]


def plan_corruptions(corruptions: list[Corruption], rounds: int, seed: int) -> Plan:
    """Draw whose reply is corrupted in which round, and how; each at least once."""
    rng = random.Random(seed)
    places = [
        (server_round, partition)
        for server_round in range(1, rounds + 1)
        for partition in rng.sample(range(NODES), BAD)
    ]
    assert len(places) >= len(corruptions)
    turns = [corruptions[i % len(corruptions)] for i in range(len(places))]
    rng.shuffle(turns)
    return dict(zip(places, turns, strict=True))


def failing(plan: Plan) -> Any:
    """Let the clients of a plan fail."""

    def fault(partition: int, message: Message) -> None:
        config = message.content.config_records.get("config", {})
        if (config.get("server-round"), partition) in plan:
            raise RuntimeError("planned")

    return fault


def run(folder: Path, grid: InProcessGrid, keys: dict[str, Any]) -> Path:
    server_app.main(grid, Context(1, 1, {}, RecordDict(), keys))
    (results,) = folder.iterdir()
    return results


@pytest.mark.parametrize(
    ("algorithm", "corruptions", "rounds"),
    [
        ("fedavg", CORRUPTIONS, 6),
        # Its clients have a state, and it divides by the reported step length.
        ("scaffold", [*ONE_OF_EACH_KIND, *STEP_LENGTHS], 3),
    ],
    ids=["fedavg", "scaffold"],
)
def test_corrupted_replies_are_as_if_the_clients_had_failed(
    algorithm: str, corruptions: list[Corruption], rounds: int, tmp_path: Path
) -> None:
    """Bit for bit: metrics and model. The bytes are those of aggregated replies."""
    plan = plan_corruptions(corruptions, rounds, seed=0)
    keys = default_keys() | KEYS | {"algorithm": algorithm}
    keys |= {"num-server-rounds": rounds, "evaluate-every": rounds}
    folders = [tmp_path / "corrupted", tmp_path / "failed"]
    all_keys = [keys | {"output-dir": str(folder)} for folder in folders]
    grid = CorruptingGrid(NODES, all_keys[0], plan)
    corrupted = run(folders[0], grid, all_keys[0])
    failed_grid = InProcessGrid(NODES, all_keys[1], fault=failing(plan))
    failed = run(folders[1], failed_grid, all_keys[1])
    assert set(grid.done) == set(corruptions)
    assert grid.done.total() == rounds * BAD
    assert metrics(corrupted) == metrics(failed)
    for row in metrics(corrupted):
        assert row["failed"] == sorted(p for r, p in plan if r == row["round"])
        assert len(row["participants"]) == NODES
    model = "model.safetensors"
    assert (corrupted / model).read_bytes() == (failed / model).read_bytes()
