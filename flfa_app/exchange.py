"""One question to some members, and the answers that count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import error

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from flfa_app.cause import cause
from flfa_app.roster import Member

__all__ = ["Answers", "exchange"]

# Between two looks for replies: a part of the time waited so far, within these bounds.
SHORTEST_WAIT, LONGEST_WAIT = 0.05, 3.0
PART_OF_TIME_WAITED = 0.05
# What Flower raises for the bytes of a message that are not one.
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, DecodeError, error)
NO_ANSWER = "no answer within round-timeout"

Check = Callable[[Member, Message], str | None]


@dataclass
class Answers:
    """What has come back from the members that were asked, in the order drawn."""

    asked: Sequence[Member]
    wanted: int
    good: dict[int, Message] = field(default_factory=dict)
    """By partition."""
    problems: dict[int, str] = field(default_factory=dict)
    """Why a partition's answer does not count."""

    @property
    def counted(self) -> dict[int, Message]:
        """The first good answers in the order drawn, sorted by partition.

        Not the first to arrive: who is fast today must not decide what is computed.
        Sorted because sums of floats depend on their order.
        """
        drawn = [m.partition_id for m in self.asked if m.partition_id in self.good]
        return {p: self.good[p] for p in sorted(drawn[: self.wanted])}

    @property
    def spare(self) -> list[int]:
        """The partitions whose good answers were not needed."""
        return sorted(set(self.good) - set(self.counted))

    @property
    def decided(self) -> bool:
        """Whether nothing that may still come can change what counts."""
        good = 0
        for member in self.asked:
            if good == self.wanted:
                return True
            if member.partition_id in self.good:
                good += 1
            elif member.partition_id not in self.problems:
                return False
        return True

    def reasons(self) -> dict[str, list[int]]:
        """Return the partitions of each problem."""
        partitions: dict[str, list[int]] = {}
        for partition, reason in sorted(self.problems.items()):
            partitions.setdefault(reason, []).append(partition)
        return partitions


def exchange(
    grid: Grid,
    messages: Mapping[int, Message],
    asked: Sequence[Member],
    *,
    wanted: int,
    check: Check,
    timeout: float,
) -> Answers:
    """Send a message to each member; return when it is clear which answers count.

    Parameters
    ----------
    grid : Grid
        The federation.
    messages : Mapping[int, Message]
        By partition. The largest are sent first, because the round lasts until the last
        one is ready; they expire with the round.
    asked : Sequence[Member]
        In the order drawn.
    wanted : int
        How many answers count.
    check : Callable[[Member, Message], str | None]
        What is wrong with an answer.
    timeout : float
        Seconds until those who have not answered are left out.
    """
    answers = Answers(asked, wanted)
    largest_first = sorted(asked, key=lambda member: -member.num_examples)
    ordered = [messages[member.partition_id] for member in largest_first]
    for message in ordered:
        message.metadata.ttl = timeout
    sent = {x for x in grid.push_messages(ordered) if x is not None}
    waiting: dict[str, Member] = {}
    for member, message in zip(largest_first, ordered, strict=True):
        if message.metadata.message_id in sent:
            waiting[message.metadata.message_id] = member
        else:
            answers.problems[member.partition_id] = "Flower could not send the message"
    started = time.monotonic()
    while waiting and not answers.decided:
        _take(_pull(grid, waiting, answers), waiting, answers, check)
        waited = time.monotonic() - started
        if not waiting or answers.decided or waited >= timeout:
            break
        pause = min(max(SHORTEST_WAIT, PART_OF_TIME_WAITED * waited), LONGEST_WAIT)
        time.sleep(min(pause, timeout - waited))
    if not answers.decided:
        for member in waiting.values():
            answers.problems[member.partition_id] = NO_ANSWER
    return answers


def _pull(
    grid: Grid, waiting: dict[str, Member], answers: Answers
) -> Iterable[Message]:
    """Return what has arrived; what Flower cannot read is a bad answer like others."""
    try:
        return list(grid.pull_messages(list(waiting)))
    except UNREADABLE:
        pass
    # One by one, so that the bad one is found and the others are not held up by it.
    arrived: list[Message] = []
    for message_id, member in list(waiting.items()):
        try:
            arrived += grid.pull_messages([message_id])
        except UNREADABLE as problem:
            del waiting[message_id]
            reason = f"Flower cannot read its answer ({type(problem).__name__})"
            answers.problems[member.partition_id] = reason
    return arrived


def _take(
    arrived: Iterable[Message],
    waiting: dict[str, Member],
    answers: Answers,
    check: Check,
) -> None:
    for reply in arrived:
        # Not by its sender: for a node that is gone the SuperLink answers.
        member = waiting.pop(reply.metadata.reply_to_message_id, None)
        if member is None:
            continue
        problem: str | None
        if reply.has_error():
            expired = reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
            problem = NO_ANSWER if expired else cause(str(reply.error.reason))
        else:
            problem = check(member, reply)
        if problem is None:
            answers.good[member.partition_id] = reply
        else:
            answers.problems[member.partition_id] = problem
