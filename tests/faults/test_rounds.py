"""Too few answers, late ones, spare ones, nodes that go and come back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from httpx import ConnectError
from safetensors.numpy import load_file

from flfa_app.data.loading import load_dataset
from flfa_app.errors import ConfigError
from flfa_app.server.exchange import exchange
from flfa_app.server.messaging import NO_ANSWER, replies_to
from flfa_app.server.nodes import Member, Roster
from tests.federation import InProcessGrid, default_keys, metrics, run_app
from tests.unit.strategies.fakes import FakeGrid, answer

PLAIN = {"pictures": False}


def failing(*pairs: tuple[int, int], attempts: int = 99) -> Any:
    """Let partitions fail in rounds: pairs of both; so many times."""
    left = dict.fromkeys(pairs, attempts)

    def fault(partition: int, message: Message) -> None:
        config = message.content.config_records.get("config", {})
        pair = (config.get("server-round"), partition)
        if left.get(pair, 0) > 0:
            left[pair] -= 1
            raise RuntimeError(f"planned in round {pair[0]}")

    return fault


def test_a_round_goes_on_without_those_who_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = PLAIN | {"fraction-train": 1.0, "min-replies": 2}
    run = run_app(tmp_path, keys, fault=failing((2, 1), (2, 3)))
    assert [row["failed"] for row in metrics(run)] == [[], [1, 3], []]
    assert "round 2 goes on without partitions 1, 3: planned in round 2" in caplog.text


def test_too_few_and_the_round_is_repeated_with_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of eight are drawn; both fail in round 2, so two others are asked."""
    keys = PLAIN | {"fraction-train": 0.25, "min-replies": 2}
    undisturbed = metrics(run_app(tmp_path / "undisturbed", keys, nodes=8))
    first = undisturbed[1]["participants"]
    fault = failing(*((2, partition) for partition in first))
    rows = metrics(run_app(tmp_path / "disturbed", keys, nodes=8, fault=fault))
    assert len(rows[1]["participants"]) == 2
    assert not set(rows[1]["participants"]) & set(first)
    assert rows[1]["failed"] == []
    assert "none of 2 clients has sent a good update, min-replies is 2" in caplog.text
    assert "trying again with others" in caplog.text
    assert rows[1]["failed-before"] == sorted(first)
    assert rows[0]["failed-before"] == rows[2]["failed-before"] == []
    # Four clients were asked, the model was sent to all of them.
    assert rows[1]["bytes-sent"] == 2 * undisturbed[1]["bytes-sent"]
    # Who is drawn later has nothing to do with it.
    assert rows[2]["participants"] == undisturbed[2]["participants"]


def test_too_few_every_time_and_the_run_fails_with_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    keys = PLAIN | {"fraction-train": 1.0, "min-replies": 3, "round-attempts": 2}
    with pytest.raises(RuntimeError) as failed:
        run_app(tmp_path, keys, fault=failing((3, 0), (3, 2)))
    (run,) = tmp_path.iterdir()
    text = str(failed.value)
    assert "round 3: 2 of 4 clients has sent a good update, min-replies is 3" in text
    assert "planned in round 3" in text
    assert str(run / "checkpoints" / "round-000002.json") in text
    assert f"resume='{run}'" in text
    assert len(metrics(run)) == 2
    assert not (run / "summary.json").exists()


def test_everyone_fails_from_the_start_and_there_is_nothing_to_go_on_from(
    tmp_path: Path,
) -> None:
    fault = failing(*((1, partition) for partition in range(4)))
    with pytest.raises(RuntimeError, match="There is no checkpoint to go on from"):
        run_app(tmp_path, PLAIN, fault=fault)


def test_more_replies_than_nodes_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="min-replies is 5, but the federation has 4"):
        run_app(tmp_path, PLAIN | {"min-replies": 5})


def test_more_replies_than_participants_cannot_be_had(tmp_path: Path) -> None:
    keys = PLAIN | {"min-replies": 3, "fraction-train": 0.5}
    with pytest.raises(ConfigError, match="only 2 of 4 nodes take part in a round"):
        run_app(tmp_path, keys)


def test_over_selection_changes_nothing_while_nobody_fails(tmp_path: Path) -> None:
    """The spare ones are asked and not needed; the model is the same, bit for bit."""
    plain = run_app(tmp_path / "plain", PLAIN | {"fraction-train": 0.5}, nodes=8)
    keys = PLAIN | {"fraction-train": 0.5, "over-selection": 1.5}
    more = run_app(tmp_path / "more", keys, nodes=8)
    for row, base in zip(metrics(more), metrics(plain), strict=True):
        assert len(row["participants"]) == 6  # 1.5 times 4
        assert set(base["participants"]) <= set(row["participants"])
        # Not all are waited for: those who are not needed may still be computing.
        assert set(row["spare"]) <= set(row["participants"]) - set(base["participants"])
        assert row["accuracy"] == base["accuracy"]
    model = (plain / "model.safetensors").read_bytes()
    assert (more / "model.safetensors").read_bytes() == model


def test_a_spare_one_takes_the_place_of_one_that_fails(tmp_path: Path) -> None:
    keys = PLAIN | {"fraction-train": 0.5, "over-selection": 1.5, "min-replies": 4}
    undisturbed = metrics(run_app(tmp_path / "one", keys, nodes=8))
    (first, *_) = set(undisturbed[1]["participants"]) - set(undisturbed[1]["spare"])
    run = run_app(tmp_path / "other", keys, nodes=8, fault=failing((2, first)))
    row = metrics(run)[1]
    assert row["failed"] == [first]
    assert row["participants"] == undisturbed[1]["participants"]
    assert len(set(row["participants"]) - {first} - set(row["spare"])) == 4


def members(number: int) -> list[Member]:
    return [Member(i + 1, i, 10, ()) for i in range(number)]


class SlowGrid(FakeGrid):
    """Nodes that answer at the look of their number; ``None``: never.

    What was fetched is gone, as it is from a SuperLink.
    """

    def __init__(self, looks: list[int | None]) -> None:
        super().__init__(len(looks), client=lambda message: answer({"x": [1.0]}))
        self.looks = looks
        self.look = 0
        self.seen: set[str] = set()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        if wanted & self.seen or self.look == 0:
            self.look, self.seen = self.look + 1, set()
        self.seen |= wanted
        ready = [
            message
            for message in self.pushed
            if message.metadata.message_id in wanted
            and (self.looks[message.metadata.dst_node_id - 1] or math.inf) <= self.look
        ]
        self.pushed = [m for m in self.pushed if m not in ready]
        return self.send_and_receive(ready)


def asked(looks: list[int | None], wanted: int, timeout: float = 60.0) -> Any:
    grid = SlowGrid(looks)
    everyone = members(len(looks))
    messages = {
        m.partition_id: Message(answer({"x": [0.0]}), m.node_id, "train")
        for m in everyone
    }
    answers = exchange(
        grid,
        messages,
        everyone,
        wanted=wanted,
        check=lambda member, reply: None,
        timeout=timeout,
    )
    assert all(m.metadata.ttl == timeout for m in messages.values())
    return answers, grid.look


def test_the_largest_are_sent_first() -> None:
    """The round lasts until the last one is ready."""
    grid = SlowGrid([1] * 4)
    everyone = [Member(i + 1, i, n, ()) for i, n in enumerate([3, 9, 1, 5])]
    messages = {
        m.partition_id: Message(answer({"x": [0.0]}), m.node_id, "train")
        for m in everyone
    }
    exchange(
        grid,
        messages,
        everyone,
        wanted=4,
        check=lambda member, reply: None,
        timeout=60.0,
    )
    assert [m.metadata.dst_node_id - 1 for m in grid.received] == [1, 3, 0, 2]


def test_those_first_drawn_count_and_not_those_first_to_answer() -> None:
    answers, looks = asked([3, 2, 1], wanted=2)
    assert [*answers.counted] == [0, 1]
    assert answers.spare == [2]
    assert looks == 3


def test_nobody_waits_for_an_answer_that_cannot_count() -> None:
    answers, looks = asked([1, 1, 5], wanted=2)
    assert [*answers.counted] == [0, 1]
    assert looks == 1
    assert answers.problems == {}  # the third is not late: it is not needed


@pytest.mark.parametrize("kind", [ValueError, IndexError, AssertionError])
def test_an_answer_that_flower_cannot_read_is_a_bad_one(kind: type[Exception]) -> None:
    """And harms nobody: what was fetched with it would be gone, too."""

    class Broken(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            if any(reply.metadata.src_node_id == 2 for reply in replies):
                raise kind("not the bytes of an object")
            return replies

    everyone = members(3)
    messages = {
        m.partition_id: Message(answer({"x": [0.0]}), m.node_id, "train")
        for m in everyone
    }
    answers = exchange(
        Broken([1, 1, 1]),
        messages,
        everyone,
        wanted=3,
        check=lambda member, reply: None,
        timeout=60.0,
    )
    assert [*answers.counted] == [0, 2]
    reason = f"Flower cannot read its answer ({kind.__name__})"
    assert answers.problems == {1: reason}


def test_a_connection_that_fails_is_nobodys_bad_answer() -> None:
    class Cut(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            raise ConnectError("no route to host")

    (member,) = members(1)
    message = Message(answer({"x": [0.0]}), member.node_id, "train")
    with pytest.raises(ConnectError):
        list(replies_to(Cut([1]), [message], timeout=1.0))


def test_an_answer_that_breaks_the_check_is_a_bad_one() -> None:
    def check(member: Member, reply: Message) -> str | None:
        if member.partition_id == 0:
            raise KeyError("surprise")
        return None

    everyone = members(2)
    messages = {
        m.partition_id: Message(answer({"x": [0.0]}), m.node_id, "train")
        for m in everyone
    }
    answers = exchange(
        SlowGrid([1, 1]), messages, everyone, wanted=2, check=check, timeout=60.0
    )
    assert [*answers.counted] == [1]
    assert answers.problems == {0: "it cannot be checked (KeyError: 'surprise')"}


def test_a_straggler_is_left_out_at_the_deadline() -> None:
    answers, _ = asked([1, None, 1], wanted=2, timeout=0.2)
    assert [*answers.counted] == [0, 2]
    assert answers.problems == {1: NO_ANSWER}


def test_a_node_that_comes_back_with_another_id_takes_its_place() -> None:
    grid = InProcessGrid(3, default_keys())
    data: dict[str, Any] = {}
    roster = Roster(
        Member(node, context.node_config["partition-id"], 5, ())
        for node, context in grid.contexts.items()
    )
    gone, *others = grid.nodes
    partition = roster.by_node[gone].partition_id
    grid.nodes = others
    roster.refresh(grid, timeout=1.0, data=data)
    assert roster.away == {partition}
    draw = roster.draw(fraction=1.0, least=1, seed=0, server_round=1)
    assert sorted(m.node_id for m in draw.take(3)) == sorted(others)
    # Back, as another node.
    data = load_dataset("digits").description.to_config()
    grid.nodes = [*others, 77]
    grid.contexts[77] = grid.contexts.pop(gone)
    roster.refresh(grid, timeout=1.0, data=data)
    assert roster.away == set()
    assert roster.by_node[77].partition_id == partition
    draw = roster.draw(fraction=1.0, least=1, seed=0, server_round=2)
    assert 77 in {m.node_id for m in draw.take(3)}


@pytest.mark.parametrize("algorithm", ["feddyn", "scaffold"])
def test_a_lost_reply_leaves_no_trace_in_the_clients_state(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of the clients' states is the server's, though replies were lost.

    Clients 0 and 2 train in round 2, store their state, and their replies never
    arrive. H = mean of q_i (FedDyn) and c = mean of c_i (SCAFFOLD) hold over the states
    of the rounds that counted, to float32's rounding of the weights they come from.
    """
    grids: list[LossyGrid] = []

    class LossyGrid(InProcessGrid):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            grids.append(self)

        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            config = message.content.config_records.get("config", {})
            partition = self.contexts[message.metadata.dst_node_id].node_config[
                "partition-id"
            ]
            if config.get("server-round") == 2 and partition in (0, 2):
                return Message(Error(4, "lost on the way"), reply_to=message)
            return reply

    monkeypatch.setattr("tests.federation.InProcessGrid", LossyGrid)
    keys = PLAIN | {"algorithm": algorithm, "fraction-train": 1.0, "state-dir": ""}
    run = run_app(tmp_path, keys | {"num-server-rounds": 4})
    rows = metrics(run)
    assert rows[1]["failed"] == [0, 2]
    checkpoint = load_file(run / "checkpoints" / "round-000004.safetensors")
    group = {"feddyn": "strategy/dual/", "scaffold": "strategy/control/"}[algorithm]
    server = {k[len(group) :]: v for k, v in checkpoint.items() if k.startswith(group)}
    assert server
    clients = [
        context.state.array_records["trainer-state-4"]
        for context in grids[0].contexts.values()
    ]
    for name, values in server.items():
        mean = np.mean([c[name].numpy().astype(np.float64) for c in clients], axis=0)
        scale = np.abs(checkpoint[f"model/{name}"]).max()
        np.testing.assert_allclose(values, mean, rtol=1e-6, atol=1e-6 * scale)


def test_stopping_early(tmp_path: Path) -> None:
    keys = PLAIN | {"num-server-rounds": 30, "target-accuracy": 0.5}
    run = run_app(tmp_path / "target", keys)
    rows = metrics(run)
    assert 1 < len(rows) < 30
    assert rows[-1]["accuracy"] >= 0.5 > max(r["accuracy"] for r in rows[:-1])
    summary = json.loads((run / "summary.json").read_text())
    assert "target-accuracy" in summary["stopped-early"]
    assert summary["rounds"] == len(rows)
