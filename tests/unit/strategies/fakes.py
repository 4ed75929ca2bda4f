"""A Flower grid in one process, whose messages are serialised as on the wire."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

Answer = RecordDict | Error | None
Client = Callable[[Message], Answer]


def record(arrays: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({k: Array(np.asarray(v)) for k, v in arrays.items()})


def ndarrays(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def bits(arrays: ArrayRecord | None) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Return everything of a record that can differ, in order."""
    assert arrays is not None
    return [
        (k, a.dtype, tuple(a.shape), a.numpy().tobytes()) for k, a in arrays.items()
    ]


def over_the_wire(message: Message) -> Message:
    """Serialise and parse as Flower's grid does it."""
    contents = {k: obj.deflate() for k, obj in get_all_nested_objects(message).items()}
    parsed = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(parsed, Message)
    # Not in the bytes: Flower sets it on both ends.
    parsed.metadata.__dict__["_message_id"] = message.metadata.message_id
    return parsed


def answer(
    arrays: Mapping[str, Any], num_examples: int = 1, **metrics: Any
) -> RecordDict:
    metrics["num-examples"] = num_examples
    return RecordDict({"arrays": record(arrays), "metrics": MetricRecord(metrics)})


class FakeGrid(Grid):
    """Call ``client`` in process; record every message as the client received it."""

    def __init__(self, nodes: int, client: Client) -> None:
        # Flower sets these in the server's process; a message needs them.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.nodes = list(range(1, nodes + 1))
        self.client = client
        self.received: list[Message] = []
        self.replied: list[Message] = []
        self.pushed: list[Message] = []

    run = set_run = create_message = None  # parts of a Grid that no strategy uses

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(str(uuid4()))
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.pushed.append(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        pulled = [m for m in self.pushed if m.metadata.message_id in wanted]
        self.pushed = [m for m in self.pushed if m not in pulled]
        return self.send_and_receive(pulled)

    def get_node_ids(self) -> Iterable[int]:
        return iter(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            arrived = over_the_wire(message)
            self.received.append(arrived)
            got = self.client(arrived)
            if got is None:  # the node never answers
                continue
            reply = over_the_wire(Message(got, reply_to=arrived))
            replies.append(reply)
            if arrived.metadata.message_type == MessageType.TRAIN:
                # Parsed again: a strategy may consume the records of a reply.
                self.replied.append(over_the_wire(reply))
        return replies

    def train_messages(self, server_round: int, key: str = "config") -> list[Message]:
        return [
            message
            for message in self.received
            if message.metadata.message_type == MessageType.TRAIN
            and message.content[key]["server-round"] == server_round
        ]

    def fa_layers(self, server_round: int, key: str = "config") -> list[str]:
        """Return the layers of a round; every train message must carry the same."""
        messages = self.train_messages(server_round, key)
        assert messages
        lists = [message.content[key]["fa-layers"] for message in messages]
        assert all(isinstance(names, list) for names in lists)
        assert all(names == lists[0] for names in lists)
        return list(lists[0])


def noisy_client(message: Message) -> RecordDict:
    """Train by a step that depends on node, round, array and received weights."""
    node = message.metadata.dst_node_id
    server_round = message.content["config"]["server-round"]
    if message.metadata.message_type == MessageType.EVALUATE:
        loss = MetricRecord(
            {"eval-loss": 1 / (node + server_round), "num-examples": node}
        )
        return RecordDict({"metrics": loss})
    trained = {}
    for name, old in ndarrays(message.content["arrays"]).items():
        rng = np.random.default_rng([node, server_round, zlib.crc32(name.encode())])
        step = 0.1 * old + rng.normal(size=old.shape)
        trained[name] = (old - step).astype(old.dtype)
    return answer(trained, 10 + node, **{"train-loss": 1 / (3 * node + server_round)})


def plan_client(plan: Mapping[int, Mapping[str, Any]]) -> Client:
    """Add ``plan[round][array][node - 1]`` to a received array.

    A round missing from the plan fails on every node, a ``None`` on one node.
    """

    def client(message: Message) -> Answer:
        if message.metadata.message_type != MessageType.TRAIN:
            return RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        updates = plan.get(message.content["config"]["server-round"], {})
        index = message.metadata.dst_node_id - 1
        trained = ndarrays(message.content["arrays"])
        if not updates or any(steps[index] is None for steps in updates.values()):
            return Error(code=1, reason="planned")
        for name, steps in updates.items():
            trained[name] = trained[name] + np.asarray(
                steps[index], trained[name].dtype
            )
        return answer(trained)

    return client


def start(
    strategy: Strategy,
    grid: Grid,
    arrays: ArrayRecord,
    rounds: int,
    config: Mapping[str, Any] | None = None,
) -> tuple[Any, list[Any]]:
    """Run Flower's own loop with fixed sampling; also return each round's arrays."""
    history: list[Any] = []
    before = random.getstate()
    random.seed(7)
    try:
        result = strategy.start(
            grid=grid,
            initial_arrays=arrays,
            num_rounds=rounds,
            train_config=ConfigRecord(dict(config or {})),
            evaluate_fn=lambda _, current: history.append(bits(current)),
        )
    finally:
        random.setstate(before)
    return result, history


NAMES = ("a.weight", "a.bias", "b.weight", "count")


def weights() -> ArrayRecord:
    """Return a small model with arrays of several types."""
    rng = np.random.default_rng(3)
    return record(
        {
            "a.weight": rng.normal(size=(6, 5)).astype(np.float32),
            "a.bias": rng.normal(size=6).astype(np.float32),
            "b.weight": rng.normal(size=(2, 3, 2)).astype(np.float16),
            "count": np.array(4),
        }
    )


def float_weights() -> ArrayRecord:
    """Return a small model of floats only, as Flower's clipping needs it."""
    rng = np.random.default_rng(5)
    shapes = {"a.weight": (3, 2), "a.bias": 3, "b.weight": 7}
    return record({k: rng.normal(size=n).astype("f4") for k, n in shapes.items()})


def changing(
    changes: Mapping[tuple[int, int], Callable[[RecordDict], Any]],
    client: Client = noisy_client,
    *,
    kind: str = MessageType.TRAIN,
    fail: bool = False,
) -> Client:
    """Return clients that change their reply, or fail instead, by round and node."""

    def changed(message: Message) -> Answer:
        content = client(message)
        if message.metadata.message_type == kind:
            server_round = message.content["config"]["server-round"]
            if change := changes.get((server_round, message.metadata.dst_node_id)):
                if fail:
                    return Error(code=2, reason="planned")
                change(content)
        return content

    return changed


def trained_replies(
    strategy: Any, nodes: int = 5, client: Client = noisy_client, server_round: int = 1
) -> list[Message]:
    """Return the replies to the messages of one round, sorted by node."""
    grid = FakeGrid(nodes, client)
    strategy.min_train_nodes = strategy.min_available_nodes = nodes
    messages = strategy.configure_train(server_round, weights(), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def values_of(replies: Iterable[Message]) -> list[dict[str, np.ndarray]]:
    """Return the decoded arrays of each reply."""
    return [ndarrays(reply.content["arrays"]) for reply in replies]
