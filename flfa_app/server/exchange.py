"""One question to some members, and the answers that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from flfa_app.server.messaging import NO_ANSWER, replies_to
from flfa_app.server.nodes import Member

__all__ = ["Answers", "exchange"]

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
    arriving = replies_to(
        grid, ordered, timeout=timeout, enough=lambda: answers.decided
    )
    for place, reply in arriving:
        member = largest_first[place]
        problem = reply if isinstance(reply, str) else _checked(check, member, reply)
        if problem is not None:
            answers.problems[member.partition_id] = problem
        elif isinstance(reply, Message):
            answers.good[member.partition_id] = reply
    if not answers.decided:
        for member in asked:
            if member.partition_id not in answers.good:
                answers.problems.setdefault(member.partition_id, NO_ANSWER)
    return answers


def _checked(check: Check, member: Member, reply: Message) -> str | None:
    try:
        return check(member, reply)
    except Exception as problem:  # whatever a client sends, the others go on
        return f"it cannot be checked ({type(problem).__name__}: {problem})"
