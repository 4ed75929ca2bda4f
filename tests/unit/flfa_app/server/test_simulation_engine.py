"""Messages of Flower's own in-memory state, handed out in the order they were sent."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from flfa_app.server.simulation_engine import (
    dispatch_in_sending_order,
    is_simulation,
    stop_for_dead_workers,
)
from tests.unit.strategies.fakes import FakeGrid


def flowers_state() -> InMemoryLinkState:
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    state = factory.state()
    assert type(state) is InMemoryLinkState
    return state


class Grid:
    """What the app sees of a simulation: Flower's grid over a state of messages."""

    def __init__(self, state: Any) -> None:
        self.grid = InMemoryGrid.__new__(InMemoryGrid)
        self.grid.state = state


class Messages:
    """Takes and gives messages as Flower's state does, one node at a time."""

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.asked: list[int] = []

    def store_message_ins(self, message: Message) -> str | None:
        if message.metadata.dst_node_id < 0:
            return None  # as Flower answers for a node it does not know
        self.stored.append(message)
        return str(len(self.stored))

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        self.asked.append(node_id)
        return [m for m in self.stored if m.metadata.dst_node_id == node_id][:limit]


Messages.__name__ = "InMemoryLinkState"


def message_to(node: int) -> Message:
    FakeGrid(1, lambda message: None)  # sets what a message needs to know of its run
    content = RecordDict({"config": ConfigRecord()})
    return Message(content, message_type=MessageType.TRAIN, dst_node_id=node)


def sweep(state: Any, nodes: list[int]) -> list[int]:
    """Ask for every node, as the engine does; return whose messages came out."""
    found = [m for node in nodes for m in state.get_message_ins(node_id=node, limit=1)]
    return [message.metadata.dst_node_id for message in found]


def test_the_order_is_that_of_sending() -> None:
    state = Messages()
    assert dispatch_in_sending_order(Grid(state).grid)
    for node in (7, 2, 5):
        state.store_message_ins(message_to(node))
    assert sweep(state, list(range(10))) == [7, 2, 5]
    assert sweep(state, list(range(10))) == []
    assert state.asked == [7, 2, 5]  # nobody was looked up who has no message


def test_with_more_messages_than_nodes_the_rest_comes_next_time() -> None:
    state = Messages()
    dispatch_in_sending_order(Grid(state).grid)
    for node in (3, 1, 2):
        state.store_message_ins(message_to(node))
    assert sweep(state, [1, 2]) == [3, 1]
    assert sweep(state, [1, 2]) == [2]


def test_a_message_that_is_not_taken_is_not_handed_out() -> None:
    state = Messages()
    dispatch_in_sending_order(Grid(state).grid)
    assert state.store_message_ins(message_to(-1)) is None
    assert sweep(state, [1]) == []


def test_flowers_state_is_what_is_expected() -> None:
    """Another Flower may have another; then rounds are only slower, and this fails."""
    state = flowers_state()
    assert dispatch_in_sending_order(Grid(state).grid)
    assert sweep(state, [1, 2, 3]) == []


def test_another_state_is_left_alone_and_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    class InMemoryLinkState:
        """Of a Flower to come, whose messages are kept under other names."""

    state = InMemoryLinkState()
    assert not dispatch_in_sending_order(Grid(state).grid)
    assert vars(state) == {}
    assert "unknown simulation engine" in caplog.text


def test_what_another_state_asks_for_besides_is_passed_on() -> None:
    given: list[Any] = []

    class InMemoryLinkState:
        def store_message_ins(self, message: Message, priority: int) -> str:
            given.append(priority)
            return "1"

        def get_message_ins(self, node_id: int, limit: int, *, lease: int) -> list[int]:
            given.append((node_id, limit, lease))
            return [node_id]

    state: Any = InMemoryLinkState()
    assert dispatch_in_sending_order(Grid(state).grid)
    state.store_message_ins(message_to(5), priority=2)
    assert state.get_message_ins(9, 1, lease=3) == [5]
    assert given == [2, (5, 1, 3)]


@pytest.mark.parametrize("grid", [FakeGrid(2, lambda message: None)])
def test_real_nodes_ask_for_themselves(grid: Any) -> None:
    before = dict(vars(grid))
    assert not is_simulation(grid)
    assert not dispatch_in_sending_order(grid)
    assert vars(grid) == before


@pytest.mark.parametrize(
    ("reason", "died"),
    [
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", True),
        ("ray.exceptions.OutOfMemoryError: Task was killed", True),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("ValueError: no data", False),
    ],
)
def test_which_errors_are_those_of_a_dead_worker(reason: str, died: bool) -> None:
    """A full GPU is a client's error like others: its worker lives."""
    problems = {3: "ValueError: harmless", 5: reason}
    with (
        pytest.raises(RuntimeError, match=r"round 2: the worker .* 5 has died")
        if died
        else nullcontext()
    ):
        stop_for_dead_workers(2, problems)
