"""A thousand bad replies: none ends the run, none is taken in, none leaves a trace.

The run is compared with one in which the same clients fail in the same rounds. It can
fail: without any one of the checks of ``strategies/checks.py`` and ``federation.py``
(records, names, order, shape, type, kind, magic bytes, header, size, finite values,
norm, names of the metrics, finite metrics, weight, partition, images) it does.
"""

from __future__ import annotations

import json
import random
from collections import Counter
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

NODES, ROUNDS, BAD = 24, 25, 20  # 25 rounds of 24 replies, of which 20 are bad
KEYS = {
    "num-server-rounds": ROUNDS,
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
Plan = Mapping[tuple[int, int], Corruption]


def planned(corruptions: list[Corruption], seed: int, rounds: int = ROUNDS) -> Plan:
    """Say whose reply is spoilt in which round, and how; everything in turn."""
    rng = random.Random(seed)
    places = [
        (server_round, partition)
        for server_round in range(1, rounds + 1)
        for partition in rng.sample(range(NODES), BAD)
    ]
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


def run(folder: Path, keys: dict[str, Any], plan: Plan, *, fail: bool = False) -> Any:
    """Run the ServerApp with clients that spoil or fail; return results and grid."""
    keys = default_keys() | KEYS | keys | {"output-dir": str(folder)}
    grid = (
        InProcessGrid(NODES, keys, fault=failing(plan))
        if fail
        else CorruptingGrid(NODES, keys, plan)
    )
    server_app.main(grid, Context(1, 1, {}, RecordDict(), keys))
    (results,) = folder.iterdir()
    return results, grid


def assert_no_trace(folder: Path, keys: dict[str, Any], plan: Plan) -> CorruptingGrid:
    """Compare everything of the two runs but the seconds; bytes are of what counted."""
    spoilt, grid = run(folder / "spoilt", keys, plan)
    failed, _ = run(folder / "failed", keys, plan, fail=True)
    assert metrics(spoilt) == metrics(failed)
    for row in metrics(spoilt):
        bad = sorted(p for r, p in plan if r == row["round"])
        assert row["failed"] == bad
        assert len(row["participants"]) - len(bad) == NODES - BAD
    model = "model.safetensors"
    assert (spoilt / model).read_bytes() == (failed / model).read_bytes()
    summary = json.loads((spoilt / "summary.json").read_text())
    assert summary["rounds"] == max(server_round for server_round, _ in plan)
    return grid


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_bad_replies_are_as_if_they_had_failed(tmp_path: Path, algorithm: str) -> None:
    """Bit for bit, 500 with each method; SCAFFOLD's clients keep a state."""
    plan = planned(CORRUPTIONS, seed=len(algorithm))
    grid = assert_no_trace(tmp_path, {"algorithm": algorithm}, plan)
    assert grid.done.total() == ROUNDS * BAD == 500
    # Everything has happened, and about as often.
    assert set(grid.done) == set(CORRUPTIONS)
    assert max(grid.done.values()) - min(grid.done.values()) <= 1
    kinds: Counter[str] = Counter()
    for corruption, number in grid.done.items():
        kinds[corruption.kind] += number
    assert set(kinds) == {
        "names",
        "shapes",
        "types",
        "not finite",
        "too far",
        "weight",
        "bytes",
        "header",
        "records",
        "metrics",
    }
    assert min(kinds.values()) >= 15


def test_a_step_length_that_cannot_be(tmp_path: Path) -> None:
    """SCAFFOLD divides by it: 0, negative, and so small that 32 bits overflow."""
    plan = planned(STEP_LENGTHS, seed=1, rounds=3)
    assert_no_trace(tmp_path, {"algorithm": "scaffold", "num-server-rounds": 3}, plan)
