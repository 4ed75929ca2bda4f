"""The whole app in one process: the real ServerApp and ClientApp, without Ray."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from flfa_app import client_app, server_app
from flfa_app.launch.app_files import default_run_config as default_keys
from tests.unit.strategies.fakes import FakeGrid, over_the_wire

__all__ = [
    "QUICK",
    "ROOT",
    "RUN_IDS",
    "InProcessGrid",
    "default_keys",
    "metrics",
    "run_app",
]

ROOT = Path(__file__).resolve().parent.parent

RUN_IDS = count(1)  # tells apart the directories of runs in the same second
# Small enough for a test, large enough for clients to differ.
QUICK = {"num-server-rounds": 3, "local-epochs": 1}


class InProcessGrid(FakeGrid):
    """Nodes with random ids, as in a real federation, that run the real ClientApp.

    ``fault(partition_id, message)`` may raise to let a client fail. The order of the
    replies is drawn with the seed ``order``.
    """

    def __init__(
        self,
        nodes: int,
        keys: dict[str, Any],
        order: int = 0,
        fault: Callable[[int, Message], None] = lambda partition_id, message: None,
    ) -> None:
        super().__init__(nodes, client=lambda message: None)
        self._random = random.Random(order)
        ids = [self._random.getrandbits(62) for _ in range(nodes)]
        self.contexts = {
            node_id: Context(
                run_id=1,
                node_id=node_id,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config=keys,
            )
            for i, node_id in enumerate(ids)
        }
        self.nodes = sorted(ids)
        self.fault = fault

    @property
    def run(self) -> Any:
        return SimpleNamespace(fab_hash="in-process")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = [over_the_wire(message) for message in messages]
        self.received += messages
        replies = [self._answer(message) for message in messages]
        self._random.shuffle(replies)
        return replies

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            self.fault(context.node_config.get("partition-id", -1), message)
            reply = client_app.app(message, context)
        except Exception as problem:  # what Flower's engine does
            reply = Message(Error(2, str(problem)), reply_to=message)
        return over_the_wire(reply)


def run_app(
    folder: Path,
    overrides: dict[str, Any] | None = None,
    *,
    nodes: int = 4,
    order: int = 0,
    fault: Callable[[int, Message], None] = lambda partition_id, message: None,
    new_folder: bool = True,
) -> Path:
    """Run the ServerApp to its end; return the directory of the results.

    A resumed run makes no new directory; its directory is the one with a new summary.
    """
    keys = default_keys() | QUICK | {"output-dir": str(folder)} | (overrides or {})
    grid = InProcessGrid(nodes, keys, order, fault)
    context = Context(next(RUN_IDS), 1, {}, RecordDict(), keys)
    pattern = "*" if new_folder else "*/summary.json"
    before = {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}
    server_app.main(grid, context)
    after = {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}
    if new_folder:
        (results,) = set(after) - set(before)
        return results
    (summary,) = (path for path in after if after[path] != before.get(path))
    return summary.parent


def metrics(results: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` without the timings."""
    lines = (results / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        assert set(row.pop("seconds")) == {"train", "aggregate", "evaluate"}
    return rows
