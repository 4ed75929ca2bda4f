"""The participants of a round: how they are drawn, and how a strategy sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
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


class ParticipantGrid:
    """A view of a grid in which a strategy sees only the participants of a round.

    Flower's strategies sample from all node ids, which are random in every run. Here
    they sample everybody they see.
    """

    def __init__(self, grid: Grid, participants: Sequence[Node]) -> None:
        self._grid = grid
        self._node_ids = [node.node_id for node in participants]

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the participants."""
        return self._node_ids

    def get_nodes(self) -> Iterable[Any]:
        """Return Flower's descriptions of the participants."""
        nodes = self._grid.get_nodes()
        return [node for node in nodes if node.node_id in self._node_ids]

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the grid."""
        return getattr(self._grid, name)
