from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Message

from flfa_app.data.loading import load_dataset
from flfa_app.server.nodes import Member, Roster
from flfa_app.server.participants import Participants
from tests.federation import InProcessGrid, default_keys

DATA = load_dataset("digits").description.to_config()


def members(sizes: list[int], ids: Callable[[int], int] = lambda i: i) -> list[Member]:
    return [Member(ids(i), i, size, ()) for i, size in enumerate(sizes)]


def drawn(roster: Roster, server_round: int = 1, **keys: Any) -> list[int]:
    settings = {"fraction": 0.5, "least": 1, "seed": 0, **keys}
    draw = roster.draw(server_round=server_round, **settings)
    return [m.partition_id for m in draw.take(draw.number)]


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


def test_all_others_follow_before_anyone_is_asked_again() -> None:
    roster = Roster(members([1] * 10))
    draw = roster.draw(fraction=0.3, least=1, seed=0, server_round=4)
    turns = [{m.partition_id for m in draw.take(3)} for _ in range(3)]
    assert len(set.union(*turns)) == 9
    # The tenth, and two of the first again.
    assert {m.partition_id for m in draw.take(3)} - set.union(*turns) != set()
    assert len(draw.take(99)) == 10


def test_the_order_is_the_same_whoever_has_gone() -> None:
    roster = Roster(members([1] * 10))
    everyone = [
        m.partition_id
        for m in roster.draw(fraction=0.5, least=1, seed=0, server_round=4).take(10)
    ]
    gone = everyone[1]
    roster.away = {gone}
    draw = roster.draw(fraction=0.5, least=1, seed=0, server_round=4)
    assert [m.partition_id for m in draw.take(10)] == [p for p in everyone if p != gone]


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
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = super().pull_messages(message_ids)
            return [r for r in replies if r.metadata.src_node_id != self.nodes[0]]

    with pytest.raises(RuntimeError, match="1 of 3 nodes have not answered"):
        Roster.of(Deaf(3, default_keys()), min_nodes=2, timeout=0.5, data=DATA)


def test_a_strategy_sees_the_participants_only() -> None:
    grid = InProcessGrid(4, default_keys())
    chosen = members([1, 1], ids=lambda i: grid.nodes[i])
    view = Participants(grid, chosen)
    assert list(view.get_node_ids()) == grid.nodes[:2]
    assert view.run.fab_hash == "in-process"
    assert [node.node_id for node in view.get_nodes()] == grid.nodes[:2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition-id": float("nan")},
        {"num-examples": -1},
        {"num-examples": [1, 2]},
        {"label-counts": [1.5]},
        {"partition-id": None},
    ],
)
def test_an_answer_that_is_none_is_named(wrong: dict[str, Any]) -> None:
    from flwr.app import MetricRecord, RecordDict

    from tests.unit.strategies.fakes import FakeGrid

    told = {"partition-id": 0, "num-examples": 5, "num-partitions": 1} | wrong
    metrics = MetricRecord({k: v for k, v in told.items() if v is not None})
    grid = FakeGrid(1, client=lambda message: RecordDict({"metrics": metrics}))
    with pytest.raises(RuntimeError, match="1 of 1 nodes cannot take part: its answer"):
        Roster.of(grid, min_nodes=1, timeout=1.0, data={})
    # In a run that goes on such a node is left out.
    roster = Roster([Member(99, 0, 5, ())])
    roster.refresh(grid, timeout=1.0, data={})
    assert [m.node_id for m in roster.members] == [99]
