"""Which replies are aggregated, and how long they are waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message
from httpx import ConnectError

from flfa_app.server.messaging import (
    NO_REPLY,
    RoundReplies,
    collect_replies,
    stream_replies,
)
from tests.unit.strategies.fakes import FakeGrid, answer


class SlowGrid(FakeGrid):
    """Node ``i`` replies at poll ``polls[i]``; ``None``: never.

    A pulled reply is gone, as it is from a SuperLink.
    """

    def __init__(self, polls: list[int | None]) -> None:
        super().__init__(len(polls), client=lambda message: answer({"x": [1.0]}))
        self.nodes = list(range(len(polls)))
        self.polls = polls
        self.poll = 0
        self._pulled: set[str] = set()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        if wanted & self._pulled or self.poll == 0:
            self.poll, self._pulled = self.poll + 1, set()
        self._pulled |= wanted
        ready = [
            message
            for message in self.pushed
            if message.metadata.message_id in wanted
            and (self.polls[message.metadata.dst_node_id] or math.inf) <= self.poll
        ]
        self.pushed = [m for m in self.pushed if m not in ready]
        return self.send_and_receive(ready)


def messages(number: int) -> dict[int, Message]:
    return {i: Message(answer({"x": [0.0]}), i, "train") for i in range(number)}


def collected(
    grid: SlowGrid, wanted: int, timeout: float = 60.0, check: Any = None
) -> RoundReplies:
    sent = messages(len(grid.polls))
    replies = collect_replies(
        grid,
        sent,
        list(sent),
        wanted=wanted,
        check=check or (lambda partition, reply: None),
        timeout=timeout,
    )
    assert all(message.metadata.ttl == timeout for message in sent.values())
    return replies


def test_those_drawn_first_count_and_not_those_that_reply_first() -> None:
    grid = SlowGrid([3, 2, 1])
    replies = collected(grid, wanted=2)
    assert [*replies.aggregated] == [0, 1]
    assert replies.spare == [2]
    assert grid.poll == 3


def test_the_order_of_the_draw_decides_and_the_result_is_sorted() -> None:
    replies = RoundReplies([7, 3, 5], wanted=2, valid=messages(8))
    assert [*replies.aggregated] == [3, 7]


def test_a_reply_that_cannot_count_is_not_waited_for() -> None:
    grid = SlowGrid([1, 1, 5])
    replies = collected(grid, wanted=2)
    assert [*replies.aggregated] == [0, 1]
    assert grid.poll == 1
    assert replies.problems == {}  # the third is not late: it is not needed


def test_messages_are_sent_in_the_given_order() -> None:
    grid = SlowGrid([1] * 3)
    sent = messages(3)
    list(stream_replies(grid, {i: sent[i] for i in (2, 0, 1)}, timeout=60.0))
    assert [m.metadata.dst_node_id for m in grid.received] == [2, 0, 1]


@pytest.mark.parametrize("kind", [ValueError, AssertionError])
def test_an_unreadable_reply_is_invalid_and_affects_no_other(
    kind: type[Exception],
) -> None:
    class BrokenGrid(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            if any(reply.metadata.src_node_id == 1 for reply in replies):
                raise kind("not the bytes of an object")
            return replies

    replies = collected(BrokenGrid([1, 1, 1]), wanted=3)
    assert [*replies.aggregated] == [0, 2]
    problem = f"Flower cannot read its reply ({kind.__name__})"
    assert replies.problems == {1: problem}


def test_a_failing_connection_is_no_invalid_reply() -> None:
    class DisconnectedGrid(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            raise ConnectError("no route to host")

    with pytest.raises(ConnectError):
        collected(DisconnectedGrid([1]), wanted=1)


def test_a_reply_that_breaks_the_check_is_invalid() -> None:
    def check(partition: int, reply: Message) -> str | None:
        if partition == 0:
            raise KeyError("surprise")
        return None

    replies = collected(SlowGrid([1, 1]), wanted=2, check=check)
    assert [*replies.aggregated] == [1]
    assert replies.problems == {0: "it cannot be checked (KeyError: 'surprise')"}


def test_a_message_that_is_not_sent_is_reported() -> None:
    class FullGrid(SlowGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[Any]:
            ids = list(super().push_messages(messages))
            return [None, *ids[1:]]

    replies = collected(FullGrid([1, 1]), wanted=2)
    assert [*replies.aggregated] == [1]
    assert replies.problems == {0: "Flower could not send the message"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only ``sleep`` advances; returns the seconds slept."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        assert seconds > 0  # otherwise the clock would stand still
        slept.append(seconds)

    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(time, "sleep", sleep)
    return slept


def test_a_straggler_is_left_out_at_the_timeout(clock: list[float]) -> None:
    replies = collected(SlowGrid([1, None, 1]), wanted=2, timeout=0.7)
    assert [*replies.aggregated] == [0, 2]
    assert replies.problems == {1: NO_REPLY}
    assert sum(clock) == pytest.approx(0.7)


def test_a_reply_at_the_very_end_of_the_timeout_counts(clock: list[float]) -> None:
    """The last pause ends with the timeout, and one more poll follows it."""
    # Polls at 0, 0.25, 0.5 and 0.7 seconds.
    replies = collected(SlowGrid([4]), wanted=1, timeout=0.7)
    assert [*replies.aggregated] == [0]
    assert clock == pytest.approx([0.25, 0.25, 0.2])
    assert collected(SlowGrid([5]), wanted=1, timeout=0.7).problems == {0: NO_REPLY}


def test_polls_become_rarer(clock: list[float]) -> None:
    """One percent of the time waited, from a quarter second to three seconds."""
    collected(SlowGrid([None]), wanted=1, timeout=1000.0)
    assert clock[0] == 0.25
    waited = sum(clock[:150])
    assert clock[150] == pytest.approx(0.01 * waited)
    assert max(clock) == 3.0
