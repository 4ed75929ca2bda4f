"""The nodes of a run: the partition of each, and which of them are connected."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app.message_keys import (
    LABEL_COUNTS,
    NUM_EXAMPLES,
    NUM_PARTITIONS,
    PARTITION_ID,
)
from flfa_app.server.messaging import stream_replies

__all__ = ["Node", "NodeRegistry", "wait_for_nodes"]

# Flower searches all stored messages for each one that it hands out.
QUERY_BATCH = 500
MIN_QUERY_SECONDS = 1.0
# For a node that connects during a run: seconds to wait for its reply, and how often
# it is queried.
NEW_NODE_TIMEOUT, MAX_QUERIES = 60.0, 3
NO_NODE = 0
"""The node id of a partition without a node. Flower never assigns it."""


@dataclass(frozen=True)
class Node:
    """A node and the partition it holds."""

    node_id: int
    partition_id: int
    num_examples: int
    label_counts: tuple[int, ...] = ()
    num_partitions: int = 0


class NodeRegistry:
    """The nodes of a run, sorted by partition.

    Node ids are random in every run. A node is identified by its partition, so that
    the same seed draws the same participants.

    Attributes
    ----------
    nodes : list[Node]
        Sorted by partition. The partitions are those of the start of the run.
    by_id : dict[int, Node]
        The same nodes by node id.
    disconnected : set[int]
        The partitions whose node is not connected.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.partition_id)
        self.by_id = {node.node_id: node for node in self.nodes}
        self.disconnected: set[int] = set()
        self._failed_queries: Counter[int] = Counter()
        holders = Counter(node.partition_id for node in self.nodes)
        if shared := [partition for partition, n in holders.items() if n > 1]:
            raise RuntimeError(
                f"more than one node holds partition {', '.join(map(str, shared))}; "
                "give every SuperNode its own partition-id in --node-config"
            )

    @property
    def num_connected(self) -> int:
        """The number of connected nodes."""
        return len(self.nodes) - len(self.disconnected)

    def refresh(self, grid: Grid, *, timeout: float, data: Mapping[str, Any]) -> None:
        """Update which nodes are connected.

        A node may come back with another node id. A node whose partition was not part
        of the run at its start does not take part.

        Parameters
        ----------
        grid : Grid
            Flower's connection to the nodes.
        timeout : float
            Seconds to wait for the replies of new nodes, at most
            :data:`NEW_NODE_TIMEOUT`.
        data : Mapping[str, Any]
            The description of the data set, which nodes need for their reply.
        """
        connected = set(grid.get_node_ids())
        new_ids = [
            node_id
            for node_id in sorted(connected - set(self.by_id))
            if self._failed_queries[node_id] < MAX_QUERIES
        ]
        # A new node may have nothing to do with this run, so it gets little time.
        replies = _query(grid, new_ids, min(timeout, NEW_NODE_TIMEOUT), data)
        for node_id in new_ids:
            problem = self._admit(replies.get(node_id, "no reply"), connected)
            if problem is not None:
                log(WARNING, "a new node cannot take part: %s", problem)
                # A silent node may be busy. A reply will not change.
                self._failed_queries[node_id] += (
                    1 if node_id not in replies else MAX_QUERIES
                )
        self.disconnected = {
            node.partition_id for node in self.nodes if node.node_id not in connected
        }

    def add_disconnected(self, partitions: Mapping[int, int]) -> None:
        """Add the partitions of a resumed run whose nodes are not connected yet.

        Parameters
        ----------
        partitions : Mapping[int, int]
            All partitions of the run, with their numbers of images.
        """
        present = {node.partition_id for node in self.nodes}
        for partition in sorted(partitions.keys() - present):
            self.nodes.append(Node(NO_NODE, partition, partitions[partition]))
            self.disconnected.add(partition)
            log(
                WARNING, "partition %d is not connected; resuming without it", partition
            )
        self.nodes.sort(key=lambda node: node.partition_id)

    def _admit(self, reply: Node | str, connected: set[int]) -> str | None:
        """Let a node replace the lost node of its partition; return why it cannot."""
        if isinstance(reply, str):
            return reply
        partitions = [node.partition_id for node in self.nodes]
        if reply.partition_id not in partitions:
            return f"the run started without partition {reply.partition_id}"
        index = partitions.index(reply.partition_id)
        previous_id = self.nodes[index].node_id
        if previous_id in connected:
            return f"another node holds partition {reply.partition_id}"
        log(INFO, "partition %d is connected again", reply.partition_id)
        self.nodes[index] = reply
        self.by_id.pop(previous_id, None)  # so that it is queried if it comes back
        self.by_id[reply.node_id] = reply
        return None


def wait_for_nodes(
    grid: Grid, *, min_nodes: int, timeout: float, data: Mapping[str, Any]
) -> NodeRegistry:
    """Wait for ``min_nodes`` nodes and query which partitions all connected ones hold.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    min_nodes : int
        The number of nodes to wait for.
    timeout : float
        Seconds to wait for the nodes, and again for their replies.
    data : Mapping[str, Any]
        The description of the data set, which nodes need for their reply.

    Raises
    ------
    RuntimeError
        If there are too few nodes, or one of them cannot take part.
    """
    node_ids = _wait_until_connected(grid, min_nodes, timeout)
    replies = _query(grid, node_ids, timeout, data)
    problems = [reply for reply in replies.values() if isinstance(reply, str)]
    if problems:
        raise RuntimeError(
            f"{len(problems)} of {len(node_ids)} nodes cannot take part: {problems[0]}"
        )
    if len(replies) < len(node_ids):
        raise RuntimeError(
            f"{len(node_ids) - len(replies)} of {len(node_ids)} nodes have not replied "
            f"within round-timeout, {timeout:g} s"
        )
    return NodeRegistry(node for node in replies.values() if isinstance(node, Node))


def _wait_until_connected(grid: Grid, min_nodes: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    while len(node_ids := list(grid.get_node_ids())) < min_nodes:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{len(node_ids)} nodes are connected after round-timeout, "
                f"{timeout:g} s; min-available-nodes is {min_nodes}"
            )
        log(INFO, "Waiting for nodes: %d of %d connected", len(node_ids), min_nodes)
        time.sleep(2)
    return node_ids


def _query(
    grid: Grid, node_ids: Sequence[int], timeout: float, data: Mapping[str, Any]
) -> dict[int, Node | str]:
    """Query which partitions nodes hold; return each one's reply or its problem.

    Silent nodes are left out. Every batch has at least :data:`MIN_QUERY_SECONDS`, even
    if the earlier ones have used up the timeout.
    """
    content = RecordDict({"data": ConfigRecord(dict(data))})
    deadline = time.monotonic() + timeout
    nodes: dict[int, Node | str] = {}
    for start in range(0, len(node_ids), QUERY_BATCH):
        queries = {
            node_id: Message(
                content, message_type=MessageType.QUERY, dst_node_id=node_id
            )
            for node_id in node_ids[start : start + QUERY_BATCH]
        }
        remaining = max(deadline - time.monotonic(), MIN_QUERY_SECONDS)
        for node_id, reply in stream_replies(grid, queries, timeout=remaining):
            nodes[node_id] = (
                reply if isinstance(reply, str) else _read_reply(node_id, reply)
            )
    return nodes


def _read_reply(node_id: int, reply: Message) -> Node | str:
    """Read the reply to a query; return what is wrong with it if it is invalid."""
    metrics: dict[str, Any] = dict(reply.content.metric_records.get("metrics", {}))
    try:
        return Node(
            node_id,
            partition_id=_whole_number(metrics[PARTITION_ID]),
            num_examples=_whole_number(metrics[NUM_EXAMPLES]),
            label_counts=tuple(map(_whole_number, metrics.get(LABEL_COUNTS, []))),
            num_partitions=_whole_number(metrics[NUM_PARTITIONS]),
        )
    except (KeyError, TypeError, ValueError) as error:
        return f"its reply is invalid: {metrics!r:.200} ({type(error).__name__})"


def _whole_number(value: Any) -> int:
    """Return a whole number from 0 to 2^53; raise ValueError for anything else."""
    if not isinstance(value, int) or not 0 <= value <= 2**53:
        raise ValueError(value)
    return value
