"""Who is in the federation, and who takes part in a round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

__all__ = ["Member", "Participants", "Roster"]


@dataclass(frozen=True)
class Member:
    """A node and the partition it holds."""

    node_id: int
    partition_id: int
    num_examples: int
    label_counts: tuple[int, ...]


class Roster:
    """The members of the federation in the order of their partitions.

    Node ids are random in every run; the partition is what a node is known by, so that
    the same seed means the same participants.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = sorted(members, key=lambda member: member.partition_id)
        self.by_node = {member.node_id: member for member in self.members}
        held = [member.partition_id for member in self.members]
        if twice := sorted({p for p in held if held.count(p) > 1}):
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
        content = RecordDict({"data": ConfigRecord(dict(data))})
        questions = [
            Message(content, message_type=MessageType.QUERY, dst_node_id=node)
            for node in nodes
        ]
        answers = list(grid.send_and_receive(questions, timeout=timeout))
        if failed := [a.error.reason for a in answers if a.has_error()]:
            raise RuntimeError(
                f"{len(failed)} of {len(nodes)} nodes cannot take part: {failed[0]}"
            )
        if len(answers) < len(nodes):
            raise RuntimeError(
                f"{len(nodes) - len(answers)} of {len(nodes)} nodes have not answered "
                f"within round-timeout, {timeout:g} s"
            )
        return cls(_member(answer) for answer in answers)

    def draw(
        self, *, fraction: float, least: int, seed: int, server_round: int
    ) -> list[Member]:
        """Draw the participants of a round, largest first.

        The largest first because the round lasts until the last one is ready.
        """
        number = min(len(self.members), max(least, round(fraction * len(self.members))))
        rng = np.random.default_rng([seed, server_round])
        drawn = rng.choice(len(self.members), number, replace=False)
        members = [self.members[i] for i in sorted(drawn)]
        return sorted(members, key=lambda member: -member.num_examples)


class Participants(Grid):
    """A grid as a strategy may see it in one round: only the participants are there.

    Flower's strategies sample by node id, which is random; here they sample all.
    """

    def __init__(self, grid: Grid, members: Sequence[Member]) -> None:
        self._grid = grid
        self._members = members

    def get_node_ids(self) -> Iterable[int]:
        """Get node IDs."""
        return [member.node_id for member in self._members]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Get nodes."""
        ids = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in ids]

    @property
    def run(self) -> Run:
        """Run information."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run this ``Grid`` object operates in."""
        self._grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a new message with specified parameters."""
        return self._grid.create_message(
            content, message_type, dst_node_id, group_id, ttl
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages to specified node IDs."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages based on message IDs."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages to specified node IDs and pull the reply messages."""
        return self._grid.send_and_receive(messages, timeout=timeout)


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


def _member(answer: Message) -> Member:
    metrics: dict[str, Any] = dict(answer.content.metric_records["metrics"])
    counts = metrics.get("label-counts", [])
    return Member(
        node_id=answer.metadata.src_node_id,
        partition_id=int(metrics["partition-id"]),
        num_examples=int(metrics["num-examples"]),
        label_counts=tuple(int(count) for count in counts),
    )
