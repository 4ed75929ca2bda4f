"""Sending messages and collecting the replies; an unreadable one affects no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from flfa_app._flwr_compat import CONNECTION_ERRORS, is_expired, is_simulation
from flfa_app.errors import summarize_error

__all__ = ["NO_REPLY", "Reply", "RoundReplies", "collect_replies", "stream_replies"]

# Seconds between two polls: a fraction of the time waited so far, within these bounds.
# Real nodes need seconds to reply, and every poll is one request for each of them.
MIN_POLL_INTERVAL, MIN_POLL_INTERVAL_REAL_NODES, MAX_POLL_INTERVAL = 0.05, 0.25, 3.0
POLL_FRACTION = 0.01
NO_REPLY = "no reply within round-timeout"

Reply: TypeAlias = Message | str
"""A reply, or the reason why there is none."""
ReplyCheck: TypeAlias = Callable[[int, Message], str | None]
"""Returns what is wrong with the reply of a partition, or None."""


@dataclass
class RoundReplies:
    """The replies to one round's train messages, by partition.

    Parameters
    ----------
    participants : Sequence[int]
        The partitions that were sent a message, in the order in which they were drawn.
    wanted : int
        How many valid replies are aggregated.
    """

    participants: Sequence[int]
    wanted: int
    valid: dict[int, Message] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """Why the reply of a partition is missing or invalid."""

    @property
    def aggregated(self) -> dict[int, Message]:
        """The replies to aggregate: the valid ones of the partitions drawn first.

        Not those that arrived first: the speed of a node must not influence the result.
        They are sorted by partition because sums of floats depend on the order.
        """
        drawn = [p for p in self.participants if p in self.valid]
        return {p: self.valid[p] for p in sorted(drawn[: self.wanted])}

    @property
    def spare(self) -> list[int]:
        """The partitions whose valid replies are not needed."""
        return sorted(set(self.valid) - set(self.aggregated))

    @property
    def is_complete(self) -> bool:
        """Whether no further reply can change which ones are aggregated."""
        valid = 0
        for partition in self.participants:
            if valid == self.wanted:
                return True
            if partition in self.valid:
                valid += 1
            elif partition not in self.problems:
                return False
        return True

    def partitions_by_problem(self) -> dict[str, list[int]]:
        """Return each problem with the partitions that have it."""
        partitions: dict[str, list[int]] = {}
        for partition, problem in sorted(self.problems.items()):
            partitions.setdefault(problem, []).append(partition)
        return partitions


def collect_replies(
    grid: Grid,
    messages: Mapping[int, Message],
    participants: Sequence[int],
    *,
    wanted: int,
    check: ReplyCheck,
    timeout: float,
) -> RoundReplies:
    """Send a message to each participant; return once the replies are complete.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    messages : Mapping[int, Message]
        The messages by partition, in the order in which to send them.
    participants : Sequence[int]
        The same partitions in the order in which they were drawn.
    wanted : int
        How many valid replies are aggregated.
    check : Callable[[int, Message], str | None]
        Returns what is wrong with the reply of a partition.
    timeout : float
        Seconds until the round continues without the missing replies.
    """
    replies = RoundReplies(participants, wanted)
    for partition, reply in stream_replies(
        grid, messages, timeout=timeout, is_complete=lambda: replies.is_complete
    ):
        if isinstance(reply, str):
            replies.problems[partition] = reply
        elif (problem := _run_check(check, partition, reply)) is not None:
            replies.problems[partition] = problem
        else:
            replies.valid[partition] = reply
    if not replies.is_complete:
        for partition in participants:
            if partition not in replies.valid:
                replies.problems.setdefault(partition, NO_REPLY)
    return replies


def stream_replies(
    grid: Grid,
    messages: Mapping[int, Message],
    *,
    timeout: float,
    is_complete: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Reply]]:
    """Send messages; yield the key of each and its reply, as the replies arrive.

    Messages without a reply at the timeout are not mentioned.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    messages : Mapping[int, Message]
        The messages, in the order in which to send them. They expire with the timeout.
    timeout : float
        In seconds.
    is_complete : Callable[[], bool], optional
        Whether to stop waiting before the timeout.
    """
    for message in messages.values():
        message.metadata.ttl = timeout
    sent = {x for x in grid.push_messages(messages.values()) if x is not None}
    pending: dict[str, int] = {}
    for key, message in messages.items():
        if message.metadata.message_id in sent:
            pending[message.metadata.message_id] = key
        else:
            yield key, "Flower could not send the message"
    simulated = is_simulation(grid)
    min_interval = MIN_POLL_INTERVAL if simulated else MIN_POLL_INTERVAL_REAL_NODES
    started = time.monotonic()
    while pending:
        for message_id, reply in _poll(grid, list(pending), simulated):
            if message_id in pending:
                yield pending.pop(message_id), reply
        waited = time.monotonic() - started
        if not pending or is_complete() or waited >= timeout:
            return
        interval = min(max(min_interval, POLL_FRACTION * waited), MAX_POLL_INTERVAL)
        # The last poll is at the timeout itself.
        time.sleep(min(interval, timeout - waited))


def _poll(
    grid: Grid, message_ids: list[str], simulated: bool
) -> Iterator[tuple[str, Reply]]:
    """Yield the ids of the messages that have been replied to, with the replies.

    Replies of real nodes are pulled one by one: if Flower cannot read one of several
    that are pulled together, all of them are lost.
    """
    groups = [message_ids] if simulated else [[one] for one in message_ids]
    for group in groups:
        try:
            replies = list(grid.pull_messages(group))
        except CONNECTION_ERRORS:
            raise  # a fault of the connection, not of the client
        except Exception as error:
            if simulated:
                raise
            # The client wrote the bytes, so any error is possible.
            yield group[0], f"Flower cannot read its reply ({type(error).__name__})"
            continue
        for reply in replies:
            # Not by the sender: the SuperLink replies for a node that is gone.
            yield reply.metadata.reply_to_message_id, _message_or_error(reply)


def _message_or_error(reply: Message) -> Reply:
    if not reply.has_error():
        return reply
    if is_expired(reply.error):
        return NO_REPLY
    return summarize_error(str(reply.error.reason))


def _run_check(check: ReplyCheck, partition: int, reply: Message) -> str | None:
    try:
        return check(partition, reply)
    except Exception as error:  # whatever a client sends, the round continues
        return f"it cannot be checked ({type(error).__name__}: {error})"
