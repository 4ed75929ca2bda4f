"""A real node starts a Python for every message: it loads what the message needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto

from flfa_app import server_app
from flfa_app.data.loading import load_dataset
from tests.federation import QUICK, ROOT, InProcessGrid, default_keys

# Each takes from a tenth of a second to seconds to import.
HEAVY = {
    "datasets",
    "flwr_datasets",
    "matplotlib",
    "medmnist",
    "pandas",
    "pyarrow",
    "ray",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torchvision",
}

# What the SuperNode's child does with its message, without the SuperNode.
CHILD = """
import json
import sys
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message

from flfa_app.client_app import app

before = sorted(sys.modules)
node_config, run_config = json.loads(sys.argv[1]), json.loads(sys.argv[2])
message = message_from_proto(Message.FromString(Path(sys.argv[3]).read_bytes()))
context = Context(1, 1, node_config, RecordDict(), run_config)
reply = app(message, context)
answer = {
    "examples": reply.content["metrics"]["num-examples"],
    "type": message.metadata.message_type,
    "imported": before,
    "used": sorted(sys.modules),
}
sys.stdout.write(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("results")
    one_round = {"num-server-rounds": 1, "pictures": False, "output-dir": str(folder)}
    return default_keys() | QUICK | one_round


@pytest.fixture(scope="module")
def messages(keys: dict[str, Any]) -> list[Message]:
    """All that a server sends in a run."""
    grid = InProcessGrid(2, keys)
    server_app.main(grid, Context(1, 1, {}, RecordDict(), keys))
    return grid.received


@pytest.mark.parametrize("kind", ["query", "train"])
def test_a_node_with_its_own_data_loads_nothing_heavy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, Any],
    messages: list[Message],
    kind: str,
) -> None:
    monkeypatch.setenv("FLFA_CACHE", str(tmp_path / "cache"))
    message = next(m for m in messages if m.metadata.message_type == kind)
    sent, own = tmp_path / "message", tmp_path / "own.npz"
    sent.write_bytes(message_to_proto(message).SerializeToString())
    images = load_dataset("digits")
    np.savez(own, images=images.train[:40], labels=images.train_labels[:40])
    node_config = {"partition-id": 0, "dataset-path": str(own)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(node_config), json.dumps(keys), sent],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["type"], answer["examples"]) == (kind, 40)
    assert "torch" in answer["imported"]  # names are what they are taken for
    assert not HEAVY & set(answer["imported"])
    assert not HEAVY & set(answer["used"])
