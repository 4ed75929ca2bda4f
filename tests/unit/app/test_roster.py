from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message

from flfa_app.data import load_images
from flfa_app.roster import Member, Participants, Roster
from tests.federation import InProcessGrid, default_keys

DATA = load_images("digits").description.to_config()


def members(sizes: list[int], ids: Callable[[int], int] = lambda i: i) -> list[Member]:
    return [Member(ids(i), i, size, ()) for i, size in enumerate(sizes)]


def drawn(roster: Roster, server_round: int = 1, **keys: Any) -> list[int]:
    settings = {"fraction": 0.5, "least": 1, "seed": 0, **keys}
    return [m.partition_id for m in roster.draw(server_round=server_round, **settings)]


def test_participants_depend_on_seed_and_round_and_not_on_node_ids() -> None:
    one = Roster(members([1] * 20))
    other = Roster(reversed(members([1] * 20, ids=lambda i: 977 * (i + 3) % 1009)))
    for server_round in (1, 2, 3):
        assert drawn(one, server_round) == drawn(other, server_round)
    assert drawn(one, 1) != drawn(one, 2)
    assert drawn(one, 1) != drawn(one, 1, seed=1)


@pytest.mark.parametrize(
    ("nodes", "fraction", "least", "expected"),
    [
        (20, 0.5, 2, 10),
        (2, 0.5, 2, 2),
        (100, 0.1, 10, 10),
        (3, 1.0, 1, 3),
        (3, 0.1, 5, 3),
    ],
)
def test_how_many_take_part(
    nodes: int, fraction: float, least: int, expected: int
) -> None:
    found = drawn(Roster(members([1] * nodes)), fraction=fraction, least=least)
    assert len(set(found)) == len(found) == expected


def test_the_largest_come_first() -> None:
    assert drawn(Roster(members([3, 9, 1, 5])), fraction=1.0) == [1, 3, 0, 2]


def test_everyone_is_drawn_sooner_or_later() -> None:
    roster = Roster(members([1] * 20))
    seen = {p for r in range(60) for p in drawn(roster, r, fraction=0.1, least=1)}
    assert seen == set(range(20))


def test_two_nodes_with_one_partition_are_refused() -> None:
    twice = [Member(1, 0, 5, ()), Member(2, 0, 5, ()), Member(3, 1, 5, ())]
    with pytest.raises(RuntimeError, match=r"partition 0; .*--node-config"):
        Roster(twice)


def test_nodes_say_what_they_hold() -> None:
    roster = Roster.of(
        InProcessGrid(4, default_keys()), min_nodes=2, timeout=5, data=DATA
    )
    assert [m.partition_id for m in roster.members] == [0, 1, 2, 3]
    assert sum(m.num_examples for m in roster.members) == 1438
    for member in roster.members:
        assert len(member.label_counts) == 10
        assert sum(member.label_counts) == member.num_examples


def test_label_counts_can_be_kept_private() -> None:
    grid = InProcessGrid(2, default_keys() | {"report-label-counts": False})
    roster = Roster.of(grid, min_nodes=2, timeout=5, data=DATA)
    assert [m.label_counts for m in roster.members] == [(), ()]


def test_a_node_without_a_partition_says_what_to_do() -> None:
    grid = InProcessGrid(2, default_keys())
    del grid.contexts[grid.nodes[0]].node_config["partition-id"]
    with pytest.raises(RuntimeError, match=r"1 of 2 nodes .*--node-config 'partition"):
        Roster.of(grid, min_nodes=2, timeout=5, data=DATA)


def test_too_few_nodes_are_waited_for_and_then_named() -> None:
    grid = InProcessGrid(1, default_keys())
    with pytest.raises(RuntimeError, match=r"1 nodes .*min-available-nodes is 2"):
        Roster.of(grid, min_nodes=2, timeout=0.1, data=DATA)


def test_a_node_that_does_not_answer_is_noticed() -> None:
    class Deaf(InProcessGrid):
        def send_and_receive(
            self, messages: Any, *, timeout: Any = None
        ) -> list[Message]:
            return list(super().send_and_receive(messages, timeout=timeout))[1:]

    with pytest.raises(RuntimeError, match="1 of 3 nodes have not answered"):
        Roster.of(Deaf(3, default_keys()), min_nodes=2, timeout=5, data=DATA)


def test_a_strategy_sees_the_participants_only() -> None:
    grid = InProcessGrid(4, default_keys())
    chosen = members([1, 1], ids=lambda i: grid.nodes[i])
    view = Participants(grid, chosen)
    assert list(view.get_node_ids()) == grid.nodes[:2]
    assert view.run.fab_hash == "in-process"
    assert [node.node_id for node in view.get_nodes()] == grid.nodes[:2]
