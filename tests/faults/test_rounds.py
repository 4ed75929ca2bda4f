"""Whole runs in which clients fail, replies are lost, or too few are valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load_file

from flfa_app.errors import ConfigError
from flfa_app.server import evaluation
from tests.federation import InProcessGrid, metrics, run_app

SMALL = {"pictures": False, "train-fraction": 0.3}
HALF = SMALL | {"fraction-train": 0.5}
OVER_SELECTION = HALF | {"over-selection": 1.5}


def failing(*pairs: tuple[int, int]) -> Any:
    """Let partitions fail in rounds: pairs of round and partition."""

    def fault(partition: int, message: Message) -> None:
        config = message.content.config_records.get("config", {})
        server_round = config.get("server-round")
        if (server_round, partition) in pairs:
            raise RuntimeError(f"planned in round {server_round}")

    return fault


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which four of eight clients are drawn and none fails."""
    return run_app(tmp_path_factory.mktemp("half"), HALF, nodes=8)


@pytest.fixture(scope="module")
def over_selected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in which six clients are asked for four replies."""
    return run_app(tmp_path_factory.mktemp("over"), OVER_SELECTION, nodes=8)


def test_a_round_continues_without_clients_that_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = SMALL | {"fraction-train": 1.0, "min-replies": 2}
    run = run_app(tmp_path, keys, fault=failing((2, 1), (2, 3)))
    assert [row["failed"] for row in metrics(run)] == [[], [1, 3], []]
    expected = "round 2 continues without partitions 1, 3: planned in round 2"
    assert expected in caplog.text


def test_with_too_few_replies_the_round_is_repeated_with_other_clients(
    undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four of eight are drawn; all fail in round 2, so the other four are asked."""
    expected = metrics(undisturbed)
    first = expected[1]["participants"]
    fault = failing(*((2, partition) for partition in first))
    keys = HALF | {"min-replies": 4}
    rows = metrics(run_app(tmp_path, keys, nodes=8, fault=fault))
    assert rows[1]["participants"] == sorted(set(range(8)) - set(first))
    assert rows[1]["failed"] == []
    problem = "none of 4 clients returned a valid update, min-replies is 4"
    assert f"round 2: {problem}; retrying with other clients" in caplog.text
    assert [row["failed-before"] for row in rows] == [[], sorted(first), []]
    # Eight clients were asked, and the model was sent to all of them.
    assert rows[1]["bytes-sent"] == 2 * expected[1]["bytes-sent"]
    # It has no influence on who is drawn later.
    assert rows[2]["participants"] == expected[2]["participants"]


def test_with_too_few_replies_in_every_attempt_the_run_names_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    keys = SMALL | {"fraction-train": 1.0, "min-replies": 3, "round-attempts": 2}
    with pytest.raises(RuntimeError) as failed:
        run_app(tmp_path, keys, fault=failing((3, 0), (3, 2)))
    (run,) = tmp_path.iterdir()
    text = str(failed.value)
    assert "round 3: 2 of 4 clients returned a valid update, min-replies is 3" in text
    assert "planned in round 3" in text
    assert str(run / "checkpoints" / "round-000002.json") in text
    assert f"resume='{run}'" in text
    assert len(metrics(run)) == 2
    assert not (run / "summary.json").exists()


def test_if_all_clients_fail_in_round_1_there_is_no_checkpoint(tmp_path: Path) -> None:
    fault = failing(*((1, partition) for partition in range(4)))
    with pytest.raises(RuntimeError, match="There is no checkpoint to resume from"):
        run_app(tmp_path, SMALL, fault=fault)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"min-replies": 5}, "min-replies is 5, but the federation has 4"),
        (
            {"min-replies": 3, "fraction-train": 0.5},
            "only 2 of 4 nodes take part in a round",
        ),
    ],
)
def test_more_replies_than_participants_are_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_app(tmp_path, SMALL | keys)


def test_over_selection_changes_nothing_while_nobody_fails(
    undisturbed: Path, over_selected: Path
) -> None:
    """More clients are asked, but the model is the same, bit for bit."""
    for row, base in zip(metrics(over_selected), metrics(undisturbed), strict=True):
        assert len(row["participants"]) == 6  # 1.5 times 4
        assert set(base["participants"]) <= set(row["participants"])
        # Clients that are not needed may still be computing.
        assert set(row["spare"]) <= set(row["participants"]) - set(base["participants"])
        assert row["accuracy"] == base["accuracy"]
    model = (undisturbed / "model.safetensors").read_bytes()
    assert (over_selected / "model.safetensors").read_bytes() == model


def test_a_spare_reply_replaces_one_that_fails(
    over_selected: Path, tmp_path: Path
) -> None:
    expected = metrics(over_selected)[1]
    (first, *_) = set(expected["participants"]) - set(expected["spare"])
    keys = OVER_SELECTION | {"min-replies": 4}
    run = run_app(tmp_path, keys, nodes=8, fault=failing((2, first)))
    row = metrics(run)[1]
    assert row["failed"] == [first]
    assert row["participants"] == expected["participants"]
    assert len(set(row["participants"]) - {first} - set(row["spare"])) == 4


@pytest.mark.parametrize("algorithm", ["feddyn", "scaffold"])
def test_a_lost_reply_leaves_no_trace_in_the_clients_state(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of the clients' states is the server's, though replies were lost.

    Clients 0 and 2 train in round 2, store their state, and their replies never
    arrive. H = mean of q_i (FedDyn) and c = mean of c_i (SCAFFOLD) hold over the states
    of the aggregated rounds, to float32's rounding of the weights they come from.
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
    keys = SMALL | {"algorithm": algorithm, "fraction-train": 1.0}
    run = run_app(tmp_path, keys)
    rows = metrics(run)
    assert rows[1]["failed"] == [0, 2]
    checkpoint = load_file(run / "checkpoints" / "round-000003.safetensors")
    group = {"feddyn": "strategy/dual/", "scaffold": "strategy/control/"}[algorithm]
    server = {k[len(group) :]: v for k, v in checkpoint.items() if k.startswith(group)}
    assert server
    clients = [
        context.state.array_records["trainer-state-3"]
        for context in grids[0].contexts.values()
    ]
    for name, values in server.items():
        mean = np.mean([c[name].numpy().astype(np.float64) for c in clients], axis=0)
        scale = np.abs(checkpoint[f"model/{name}"]).max()
        np.testing.assert_allclose(values, mean, rtol=1e-6, atol=1e-6 * scale)


def test_a_run_that_reaches_its_target_stops_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = iter([0.3, 0.4, 0.55])
    monkeypatch.setattr(evaluation, "accuracy", lambda logits, labels: next(planned))
    keys = SMALL | {"num-server-rounds": 30, "target-accuracy": 0.5}
    run = run_app(tmp_path, keys)
    assert [row["accuracy"] for row in metrics(run)] == [0.3, 0.4, 0.55]
    summary = json.loads((run / "summary.json").read_text())
    assert "target-accuracy" in summary["stopped-early"]
    assert summary["rounds"] == 3
    # Resumed, it ends at once with the same result.
    model = (run / "model.safetensors").read_bytes()
    run_app(tmp_path, keys | {"resume": str(run)}, new_folder=False)
    assert len(metrics(run)) == 3
    assert (run / "model.safetensors").read_bytes() == model
