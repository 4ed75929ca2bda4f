"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flfa_app.server.nodes import Node, NodeRegistry
from flfa_app.server.sampling import (
    ParticipantGrid,
    ParticipantSampler,
    num_participants,
)
from tests.federation import InProcessGrid, default_keys


def registry(number: int, node_id: Callable[[int], int] = lambda i: i) -> NodeRegistry:
    return NodeRegistry(Node(node_id(i), i, 1) for i in range(number))


def sampler(
    nodes: NodeRegistry,
    server_round: int = 1,
    fraction: float = 0.5,
    minimum: int = 1,
    seed: int = 0,
) -> ParticipantSampler:
    return ParticipantSampler(
        nodes, fraction=fraction, minimum=minimum, seed=seed, server_round=server_round
    )


def partitions(nodes: list[Node]) -> list[int]:
    return [node.partition_id for node in nodes]


def participants(
    nodes: NodeRegistry, server_round: int, seed: int = 0, fraction: float = 0.5
) -> list[int]:
    drawn = sampler(nodes, server_round, fraction, seed=seed)
    return partitions(drawn.next_participants(drawn.num_participants))


def test_participants_depend_on_seed_and_round_but_not_on_node_ids() -> None:
    one = registry(20)
    other = registry(20, node_id=lambda i: 977 * (i + 3) % 1009)
    for server_round in (1, 2, 3):
        assert participants(one, server_round) == participants(other, server_round)
    assert participants(one, 1) != participants(one, 2)
    assert participants(one, 1) != participants(one, 1, seed=1)


@pytest.mark.parametrize(
    ("num_nodes", "fraction", "minimum", "expected"),
    [
        (20, 0.5, 2, 10),
        (2, 0.5, 2, 2),
        (100, 0.1, 10, 10),
        (3, 1.0, 1, 3),
        (3, 0.1, 5, 3),
    ],
)
def test_number_of_participants(
    num_nodes: int, fraction: float, minimum: int, expected: int
) -> None:
    assert num_participants(num_nodes, fraction=fraction, minimum=minimum) == expected
    drawn = sampler(registry(num_nodes), fraction=fraction, minimum=minimum)
    assert drawn.num_participants == expected
    assert len(set(drawn.next_participants(expected))) == expected


def test_all_nodes_are_drawn_before_one_is_drawn_again() -> None:
    drawn = sampler(registry(10), server_round=4, fraction=0.3)
    batches = [set(partitions(drawn.next_participants(3))) for _ in range(3)]
    assert len(set.union(*batches)) == 9
    # The tenth, and two of the first again.
    assert set(partitions(drawn.next_participants(3))) - set.union(*batches) != set()
    assert len(drawn.next_participants(99)) == 10


def test_the_order_is_the_same_when_a_node_is_disconnected() -> None:
    nodes = registry(10)
    order = partitions(sampler(nodes, server_round=4).next_participants(10))
    lost = order[1]
    nodes.disconnected = {lost}
    remaining = sampler(nodes, server_round=4).next_participants(10)
    assert partitions(remaining) == [p for p in order if p != lost]


def test_every_node_is_drawn_in_some_round() -> None:
    nodes = registry(20)
    drawn = {p for r in range(60) for p in participants(nodes, r, fraction=0.1)}
    assert drawn == set(range(20))


def test_a_strategy_sees_the_participants_only() -> None:
    grid = InProcessGrid(4, default_keys())
    visible = ParticipantGrid(grid, [Node(grid.nodes[i], i, 1) for i in range(2)])
    assert list(visible.get_node_ids()) == grid.nodes[:2]
    assert visible.run.fab_hash == "in-process"
    assert [node.node_id for node in visible.get_nodes()] == grid.nodes[:2]
