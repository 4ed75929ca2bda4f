"""Which nodes a run has, and which of them are connected."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from flfa_app.data.loading import load_dataset
from flfa_app.server import nodes as nodes_module
from flfa_app.server.nodes import Node, NodeRegistry, wait_for_nodes
from tests.federation import InProcessGrid, default_keys
from tests.unit.strategies.fakes import FakeGrid

DATA = load_dataset("digits").description.to_config()


class PartitionGrid(FakeGrid):
    """Nodes that hold the partition of their id's last digit; some never reply."""

    def __init__(self, *nodes: int, silent: Iterable[int] = ()) -> None:
        super().__init__(0, client=lambda message: None)
        self.nodes = list(nodes)
        self.silent = set(silent)
        self.queried: list[int] = []
        self.ttls: list[float] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.queried.append(node)
            self.ttls.append(message.metadata.ttl)
            if node not in self.silent:
                reply = partition_reply(node % 10)
                replies.append(Message(reply, reply_to=message))
        return replies


def partition_reply(partition: int, **metrics: Any) -> RecordDict:
    content = {"partition-id": partition, "num-examples": 5, "num-partitions": 0}
    return RecordDict({"metrics": MetricRecord(content | metrics)})


def node_ids(registry: NodeRegistry) -> list[int]:
    return [node.node_id for node in registry.nodes]


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent nodes are given up at once."""
    monkeypatch.setattr(nodes_module, "MIN_QUERY_SECONDS", 0.0)


def test_two_nodes_with_one_partition_are_refused() -> None:
    nodes = [Node(1, 0, 5), Node(2, 0, 5), Node(3, 1, 5)]
    with pytest.raises(RuntimeError, match=r"partition 0; .*--node-config"):
        NodeRegistry(nodes)


def test_nodes_reply_what_they_hold() -> None:
    grid = InProcessGrid(4, default_keys())
    registry = wait_for_nodes(grid, min_nodes=2, timeout=5, data=DATA)
    assert [node.partition_id for node in registry.nodes] == [0, 1, 2, 3]
    assert [node.num_partitions for node in registry.nodes] == [4] * 4
    assert sum(node.num_examples for node in registry.nodes) == 1438
    for node in registry.nodes:
        assert len(node.label_counts) == 10
        assert sum(node.label_counts) == node.num_examples


def test_label_counts_can_be_kept_private() -> None:
    grid = InProcessGrid(2, default_keys() | {"report-label-counts": False})
    registry = wait_for_nodes(grid, min_nodes=2, timeout=5, data=DATA)
    assert [node.label_counts for node in registry.nodes] == [(), ()]


def test_a_node_without_a_partition_names_the_remedy() -> None:
    grid = InProcessGrid(2, default_keys())
    del grid.contexts[grid.nodes[0]].node_config["partition-id"]
    with pytest.raises(RuntimeError, match=r"1 of 2 nodes .*--node-config 'partition"):
        wait_for_nodes(grid, min_nodes=2, timeout=5, data=DATA)


def test_too_few_nodes_are_an_error_after_the_timeout() -> None:
    """A node that connects in time is used; one that does not is named."""
    grid = PartitionGrid(11)
    with pytest.raises(RuntimeError, match=r"1 nodes .*min-available-nodes is 2"):
        wait_for_nodes(grid, min_nodes=2, timeout=-1.0, data={})


def test_nodes_that_connect_in_time_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = PartitionGrid(11)
    monkeypatch.setattr(time, "sleep", lambda seconds: grid.nodes.append(12))
    registry = wait_for_nodes(grid, min_nodes=2, timeout=60.0, data={})
    assert node_ids(registry) == [11, 12]


@pytest.mark.usefixtures("no_patience")
def test_a_node_that_does_not_reply_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 of 3 nodes have not replied"):
        wait_for_nodes(
            PartitionGrid(1, 2, 3, silent=[2]), min_nodes=2, timeout=0.0, data={}
        )


def test_every_batch_of_queries_has_time_to_be_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes are queried in batches; the last one is not starved by the others.

    The clock advances by 4 s whenever it is read. Of a timeout of 10 s the first
    batch has 6 s left, the next one less, and later ones a second each.
    """
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(nodes_module, "QUERY_BATCH", 2)
    grid = PartitionGrid(1, 2, 3, 4, 5, 6)
    # min_nodes=0: the clock is first read for the deadline of the connection.
    registry = wait_for_nodes(grid, min_nodes=0, timeout=10.0, data={})
    assert node_ids(registry) == [1, 2, 3, 4, 5, 6]
    assert grid.ttls == [6.0, 6.0, 1.0, 1.0, 1.0, 1.0]


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
def test_an_invalid_reply_is_reported(wrong: Mapping[str, Any]) -> None:
    content = partition_reply(0)
    for key, value in wrong.items():
        if value is None:
            del content["metrics"][key]
        else:
            content["metrics"][key] = value
    grid = FakeGrid(1, client=lambda message: content)
    with pytest.raises(RuntimeError, match="1 of 1 nodes cannot take part: its reply"):
        wait_for_nodes(grid, min_nodes=1, timeout=1.0, data={})
    # During a run such a node is left out.
    registry = NodeRegistry([Node(99, 0, 5)])
    registry.refresh(grid, timeout=1.0, data={})
    assert node_ids(registry) == [99]


def test_a_node_that_comes_back_with_another_id_replaces_the_lost_one() -> None:
    registry = NodeRegistry([Node(11, 1, 5), Node(12, 2, 5)])
    grid = PartitionGrid(12)
    registry.refresh(grid, timeout=1.0, data={})
    assert registry.disconnected == {1}
    assert registry.num_connected == 1
    grid.nodes = [12, 21]
    registry.refresh(grid, timeout=1.0, data={})
    assert node_ids(registry) == [21, 12]
    assert registry.by_id[21].partition_id == 1
    # The replacement goes, and the first node is back.
    grid.nodes = [11, 12]
    registry.refresh(grid, timeout=1.0, data={})
    assert node_ids(registry) == [11, 12]
    assert registry.disconnected == set()


@pytest.mark.usefixtures("no_patience")
def test_a_stranger_is_queried_once_and_a_silent_node_three_times() -> None:
    registry = NodeRegistry([Node(11, 1, 5)])
    grid = PartitionGrid(11, 33, 44, silent=[44])
    for _ in range(6):
        registry.refresh(grid, timeout=0.0, data={})
    assert grid.queried.count(33) == 1
    assert grid.queried.count(44) == 3
    assert node_ids(registry) == [11]


def test_a_second_node_with_a_connected_partition_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = NodeRegistry([Node(11, 1, 5)])
    registry.refresh(PartitionGrid(11, 21), timeout=1.0, data={})
    assert node_ids(registry) == [11]
    assert "another node holds partition 1" in caplog.text


def test_a_new_node_gets_a_minute_at_most() -> None:
    grid = PartitionGrid(11, 21)
    NodeRegistry([Node(11, 1, 5)]).refresh(grid, timeout=3600.0, data={})
    assert 59.0 < grid.ttls[0] <= 60.0


def test_missing_partitions_of_a_resumed_run_are_disconnected() -> None:
    registry = NodeRegistry([Node(12, 2, 5)])
    registry.add_disconnected({1: 7, 2: 5})
    assert registry.nodes == [Node(0, 1, 7), Node(12, 2, 5)]
    assert registry.disconnected == {1}
    # It takes part again once its node is there.
    registry.refresh(PartitionGrid(12, 31), timeout=1.0, data={})
    assert node_ids(registry) == [31, 12]
    assert registry.disconnected == set()
