"""The participants of a round: how they are drawn, and how a strategy sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flfa_app.server.nodes import Node, NodeRegistry

__all__ = ["ParticipantGrid", "ParticipantSampler", "num_participants"]


def num_participants(num_nodes: int, *, fraction: float, minimum: int) -> int:
    """Return how many of ``num_nodes`` nodes take part in a round."""
    return min(num_nodes, max(minimum, round(fraction * num_nodes)))


class ParticipantSampler:
    """Draws the participants of one round, and replacements if too few reply.

    The order depends on seed and round alone. Disconnected nodes are skipped.

    Parameters
    ----------
    registry : NodeRegistry
        The nodes of the run.
    fraction : float
        The fraction of the nodes that take part.
    minimum : int
        The smallest number of participants, if there are that many nodes.
    seed : int
        The seed of the run.
    server_round : int
        The round.
    """

    def __init__(
        self,
        registry: NodeRegistry,
        *,
        fraction: float,
        minimum: int,
        seed: int,
        server_round: int,
    ) -> None:
        num_nodes = len(registry.nodes)
        self.num_participants = num_participants(
            num_nodes, fraction=fraction, minimum=minimum
        )
        self._registry = registry
        self._seed = (seed, server_round)
        drawn = np.random.default_rng(self._seed).choice(
            num_nodes, self.num_participants, replace=False
        )
        self._first: list[int] = sorted(drawn.tolist())
        self._order = self._indices()

    def next_participants(self, number: int) -> list[Node]:
        """Return the next nodes, starting over once all have been asked."""
        registry = self._registry
        drawn: list[Node] = []
        # Two cycles are enough: the first may begin with nodes that are drawn already.
        for _ in range(2 * len(registry.nodes)):
            if len(drawn) >= min(number, registry.num_connected):
                break
            node = registry.nodes[next(self._order)]
            if node.partition_id not in registry.disconnected and node not in drawn:
                drawn.append(node)
        return drawn

    def _indices(self) -> Iterator[int]:
        """Yield indices of nodes: the participants, then all others, repeatedly."""
        others: list[int] | None = None
        while True:
            yield from self._first
            if others is None:
                rest = sorted(set(range(len(self._registry.nodes))) - set(self._first))
                rng = np.random.default_rng((*self._seed, 1))
                others = [rest[i] for i in rng.permutation(len(rest)).tolist()]
            yield from others


class ParticipantGrid(Grid):
    """A grid that shows a strategy only the participants of a round.

    Flower's strategies sample from all node ids, which are random in every run. Here
    they sample everybody they see.
    """

    def __init__(self, grid: Grid, participants: Sequence[Node]) -> None:
        self._grid = grid
        self._participants = participants

    def get_node_ids(self) -> Iterable[int]:
        """Get node IDs."""
        return [node.node_id for node in self._participants]

    def get_nodes(self) -> Iterable[Any]:
        """Get nodes."""
        ids = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in ids]

    @property
    def run(self) -> Any:
        """Run information."""
        return self._grid.run

    def set_run(self, run: Any) -> None:
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
