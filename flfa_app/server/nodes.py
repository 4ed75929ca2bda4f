"""Who is in the federation, and who takes part in a round."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app.server.messaging import replies_to

_NUMBERS = ("partition-id", "num-examples", "num-partitions")
# Flower looks through all messages there are for each that it hands out.
ASKED_AT_ONCE = 500
# A node that appears in the middle of a run: seconds to wait, and how often to ask.
PATIENCE_WITH_NEW_NODES, MOST_QUESTIONS = 60.0, 3
NOBODY = 0  # the node of a partition that is away: no node has this id

__all__ = ["Draw", "Member", "Roster"]


@dataclass(frozen=True)
class Member:
    """A node and the partition it holds."""

    node_id: int
    partition_id: int
    num_examples: int
    label_counts: tuple[int, ...]
    num_partitions: int = 0


class Roster:
    """The members of the federation in the order of their partitions.

    Node ids are random in every run; the partition is what a node is known by, so that
    the same seed means the same participants.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = sorted(members, key=lambda member: member.partition_id)
        self.by_node = {member.node_id: member for member in self.members}
        self.away: set[int] = set()  # partitions whose node is not connected
        self._asked_in_vain: Counter[int] = Counter()  # nodes, how often
        held = Counter(member.partition_id for member in self.members)
        if twice := [partition for partition, nodes in held.items() if nodes > 1]:
            raise RuntimeError(
                f"more than one node holds partition {', '.join(map(str, twice))}; "
                "give every SuperNode its own partition-id in --node-config"
            )

    @classmethod
    def of(
        cls, grid: Grid, *, min_nodes: int, timeout: float, data: Mapping[str, Any]
    ) -> Roster:
        """Wait for ``min_nodes`` nodes and ask all that are there what they hold.

        ``data`` is what they have to know of the run's data set to answer.
        """
        nodes = _wait_for_nodes(grid, min_nodes, timeout)
        answers = _ask(grid, nodes, timeout, data)
        members, failed = [], []
        for answer in answers.values():
            if isinstance(answer, Member):
                members.append(answer)
            else:
                failed.append(answer)
        if failed:
            raise RuntimeError(
                f"{len(failed)} of {len(nodes)} nodes cannot take part: {failed[0]}"
            )
        if len(answers) < len(nodes):
            raise RuntimeError(
                f"{len(nodes) - len(answers)} of {len(nodes)} nodes have not answered "
                f"within round-timeout, {timeout:g} s"
            )
        return cls(members)

    def refresh(self, grid: Grid, *, timeout: float, data: Mapping[str, Any]) -> None:
        """Look who is connected now: nodes go, and come back, perhaps with another id.

        The federation is the one of the start: a node with a partition that nobody had
        then is not asked to take part.
        """
        connected = set(grid.get_node_ids())
        unknown = [
            node
            for node in sorted(connected - set(self.by_node))
            if self._asked_in_vain[node] < MOST_QUESTIONS
        ]
        # Nobody waits long for a node that may have nothing to do with this run.
        answers = _ask(grid, unknown, min(timeout, PATIENCE_WITH_NEW_NODES), data)
        for node in unknown:
            problem = self._take_back(answers.get(node, "no answer"), connected)
            if problem is not None:
                log(WARNING, "a new node cannot take part: %s", problem)
                # One that is silent may be busy; what the others say will not change.
                self._asked_in_vain[node] += (
                    1 if node not in answers else MOST_QUESTIONS
                )
        self.away = {m.partition_id for m in self.members if m.node_id not in connected}

    def expect(self, partitions: Mapping[int, int]) -> None:
        """Make it the roster of a run that began with these partitions.

        Those who are not there now are away, and may come back.

        Parameters
        ----------
        partitions : Mapping[int, int]
            Their numbers of images.
        """
        here = {member.partition_id for member in self.members}
        for partition in sorted(partitions.keys() - here):
            self.members.append(Member(NOBODY, partition, partitions[partition], ()))
            self.away.add(partition)
            log(WARNING, "partition %d is away; going on without it", partition)
        self.members.sort(key=lambda member: member.partition_id)

    def _take_back(self, answer: Member | str, connected: set[int]) -> str | None:
        """Give a partition its node back; return why not if that cannot be done."""
        if isinstance(answer, str):
            return answer
        places = [m.partition_id for m in self.members]
        if answer.partition_id not in places:
            return f"the run began without partition {answer.partition_id}"
        place = places.index(answer.partition_id)
        before = self.members[place].node_id
        if before in connected:
            return f"another node has partition {answer.partition_id}"
        log(INFO, "partition %d is back", answer.partition_id)
        self.members[place] = answer
        self.by_node.pop(before, None)  # so that it is asked if it comes back itself
        self.by_node[answer.node_id] = answer
        return None

    def draw(
        self, *, fraction: float, least: int, seed: int, server_round: int
    ) -> Draw:
        """Draw the participants of a round."""
        number = min(len(self.members), max(least, round(fraction * len(self.members))))
        return Draw(self, number, (seed, server_round))


class Draw:
    """The order in which the members of a roster are asked in a round.

    It depends on seed and round alone. Who is not connected is passed over.
    """

    def __init__(self, roster: Roster, number: int, seed: tuple[int, int]) -> None:
        self.number = number
        self._roster = roster
        self._seed = seed
        rng = np.random.default_rng(seed)
        drawn = rng.choice(len(roster.members), number, replace=False)
        self._first: list[int] = sorted(drawn.tolist())
        self._order = self._in_turn()

    def take(self, number: int) -> list[Member]:
        """Return the next ones; those asked before come again when all have been."""
        present = len(self._roster.members) - len(self._roster.away)
        taken: list[Member] = []
        # Twice around: the second half of a turn may begin with who is taken already.
        for _ in range(2 * len(self._roster.members)):
            if len(taken) >= min(number, present):
                break
            member = self._roster.members[next(self._order)]
            if member.partition_id not in self._roster.away and member not in taken:
                taken.append(member)
        return taken

    def _in_turn(self) -> Iterator[int]:
        """Yield places in the roster: the participants, then all others, again."""
        others: list[int] | None = None
        while True:
            yield from self._first
            if others is None:
                rest = sorted(set(range(len(self._roster.members))) - set(self._first))
                rng = np.random.default_rng((*self._seed, 1))
                others = [rest[i] for i in rng.permutation(len(rest)).tolist()]
            yield from others


def _wait_for_nodes(grid: Grid, min_nodes: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    while len(nodes := list(grid.get_node_ids())) < min_nodes:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{len(nodes)} nodes are connected after round-timeout, {timeout:g} s; "
                f"min-available-nodes is {min_nodes}"
            )
        log(INFO, "Waiting for nodes: %d of %d connected", len(nodes), min_nodes)
        time.sleep(2)
    return nodes


def _ask(
    grid: Grid, nodes: Sequence[int], timeout: float, data: Mapping[str, Any]
) -> dict[int, Member | str]:
    """Ask nodes what they hold; return what they say, or why that is no answer."""
    content = RecordDict({"data": ConfigRecord(dict(data))})
    deadline = time.monotonic() + timeout
    answers: dict[int, Member | str] = {}
    for start in range(0, len(nodes), ASKED_AT_ONCE):
        asked = nodes[start : start + ASKED_AT_ONCE]
        questions = [
            Message(content, message_type=MessageType.QUERY, dst_node_id=node)
            for node in asked
        ]
        left = max(deadline - time.monotonic(), 1.0)
        for place, reply in replies_to(grid, questions, timeout=left):
            answers[asked[place]] = (
                reply if isinstance(reply, str) else _member(asked[place], reply)
            )
    return answers


def _member(node: int, answer: Message) -> Member | str:
    """Read a node's answer; return why it is none."""
    metrics: dict[str, Any] = dict(answer.content.metric_records.get("metrics", {}))
    counts = metrics.get("label-counts", [])
    try:
        partition, examples, partitions = (_whole(metrics[key]) for key in _NUMBERS)
        labels = tuple(_whole(count) for count in counts)
    except (KeyError, TypeError, ValueError) as problem:
        return f"its answer is not one: {metrics!r:.200} ({type(problem).__name__})"
    return Member(node, partition, examples, labels, partitions)


def _whole(number: Any) -> int:
    """Return a whole number that a client may claim; raise if it is none."""
    if not isinstance(number, int) or not 0 <= number <= 2**53:
        raise ValueError(number)
    return number
