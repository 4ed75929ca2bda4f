"""The order of a simulation's messages, and the errors of dead workers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from flfa_app.server.simulation_engine import (
    dispatch_in_sending_order,
    is_simulation,
    stop_for_dead_workers,
)
from tests.unit.strategies.fakes import FakeGrid


class InMemoryGrid(FakeGrid):
    """A grid with the name of Flower's, over a state of messages."""

    def __init__(self, state: Any) -> None:
        super().__init__(0, client=lambda message: None)
        self.state = state


class InMemoryLinkState:
    """Stores messages as Flower's state does; it is asked for one node at a time."""

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.requests: list[int] = []

    def store_message_ins(self, message: Message) -> str | None:
        if message.metadata.dst_node_id < 0:
            return None  # as Flower answers for an unknown node
        self.stored.append(message)
        return str(len(self.stored))

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        self.requests.append(node_id)
        return [m for m in self.stored if m.metadata.dst_node_id == node_id][:limit]


@pytest.fixture
def state() -> InMemoryLinkState:
    state = InMemoryLinkState()
    assert dispatch_in_sending_order(InMemoryGrid(state))
    return state


def message_to(node: int) -> Message:
    FakeGrid(1, lambda message: None)  # sets the run that a message belongs to
    content = RecordDict({"config": ConfigRecord()})
    return Message(content, message_type=MessageType.TRAIN, dst_node_id=node)


def fetch(state: Any, nodes: list[int]) -> list[int]:
    """Ask for every node, as the engine does; return whose messages came out."""
    found = [m for node in nodes for m in state.get_message_ins(node_id=node, limit=1)]
    return [message.metadata.dst_node_id for message in found]


def test_messages_are_handed_out_in_the_order_of_sending(
    state: InMemoryLinkState,
) -> None:
    for node in (7, 2, 5):
        state.store_message_ins(message_to(node))
    assert fetch(state, list(range(10))) == [7, 2, 5]
    assert fetch(state, list(range(10))) == []
    assert state.requests == [7, 2, 5]  # no search for nodes without a message


def test_messages_that_are_left_over_come_next_time(state: InMemoryLinkState) -> None:
    for node in (3, 1, 2):
        state.store_message_ins(message_to(node))
    assert fetch(state, [1, 2]) == [3, 1]
    assert fetch(state, [1, 2]) == [2]


def test_a_message_that_is_not_stored_is_not_handed_out(
    state: InMemoryLinkState,
) -> None:
    assert state.store_message_ins(message_to(-1)) is None
    assert fetch(state, [1]) == []


def test_further_arguments_of_a_later_flower_are_passed_on() -> None:
    given: list[Any] = []

    class LaterState:
        def store_message_ins(self, message: Message, priority: int) -> str:
            given.append(priority)
            return "1"

        def get_message_ins(self, node_id: int, limit: int, *, lease: int) -> list[int]:
            given.append((node_id, limit, lease))
            return [node_id]

    LaterState.__name__ = "InMemoryLinkState"
    state: Any = LaterState()
    assert dispatch_in_sending_order(InMemoryGrid(state))
    state.store_message_ins(message_to(5), priority=2)
    assert state.get_message_ins(9, 1, lease=3) == [5]
    assert given == [2, (5, 1, 3)]


def test_an_unknown_engine_is_left_unchanged_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = object()
    assert not dispatch_in_sending_order(InMemoryGrid(state))
    assert "unknown simulation engine" in caplog.text


def test_nothing_changes_for_real_nodes(caplog: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(2, lambda message: None)
    before = dict(vars(grid))
    assert not is_simulation(grid)
    assert not dispatch_in_sending_order(grid)
    assert vars(grid) == before
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("reason", "died"),
    [
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", True),
        ("ray.exceptions.OutOfMemoryError: Task was killed", True),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("ValueError: no data", False),
    ],
)
def test_errors_of_a_dead_worker_stop_the_run(reason: str, died: bool) -> None:
    """A full GPU is not one of them: its worker lives."""
    problems = {3: "ValueError: harmless", 5: reason}
    with (
        pytest.raises(RuntimeError, match=r"round 2: the worker .* 5 has died")
        if died
        else nullcontext()
    ):
        stop_for_dead_workers(2, problems)
