"""The app as a whole, in one process."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from flwr.app import Message, MessageType
from safetensors.torch import load_file

from flfa_app.errors import ConfigError
from tests.federation import metrics, run_app


def bits(results: Path) -> dict[str, torch.Tensor]:
    return load_file(results / "model.safetensors")


def assert_same_model(one: Path, other: Path) -> None:
    first, second = bits(one), bits(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype
        assert torch.equal(tensor, second[name]), name


def test_a_run_leaves_everything_a_person_looks_at(tmp_path: Path) -> None:
    results = run_app(tmp_path)
    names = {path.name for path in results.iterdir()}
    assert names == {
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "model.safetensors",
        "best_model.safetensors",
        "checkpoints",
        ".lock",
        "progress.png",
        "scores.png",
        "cosines.png",
        "partition.png",
    }
    config = json.loads((results / "config.json").read_text())
    assert config["run-config"]["dataset"] == "digits"
    assert config["candidate-layers"] == ["conv2", "conv3", "head"]
    assert config["eligible-layers"] == ["conv1", "conv2", "conv3", "head"]
    assert {"flwr", "torch", "python"} <= config["versions"].keys()
    rows = metrics(results)
    assert [row["round"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert list(row["scores"]) == ["conv1", "conv2", "conv3", "head"]
        assert row["failed"] == []
        assert row["bytes-sent"] > 4 * config["parameters"] * len(row["participants"])
    summary = json.loads((results / "summary.json").read_text())
    # 10 % of three rounds, rounded up, is the last one.
    assert summary["score"] == rows[-1]["accuracy"] == summary["final-accuracy"]


def test_selection_follows_the_scores_of_the_round_before(tmp_path: Path) -> None:
    rows = metrics(run_app(tmp_path, {"flfa": "lowest", "num-fa-layers": 2}))
    assert rows[0]["selected"] == []
    for before, row in pairwise(rows):
        scores = {k: v for k, v in before["scores"].items() if k != "conv1"}
        assert row["selected"] == sorted(scores, key=scores.__getitem__)[:2]


def test_the_same_seed_is_the_same_run_whatever_the_order_of_replies(
    tmp_path: Path,
) -> None:
    one, other = (run_app(tmp_path, order=order) for order in (1, 2))
    assert metrics(one) == metrics(other)
    assert_same_model(one, other)


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    one, other = (run_app(tmp_path, {"seed": seed}) for seed in (0, 1))
    assert metrics(one) != metrics(other)


def test_bp_and_flfa_are_paired(tmp_path: Path) -> None:
    """Same partition, participants, weights and batches: only what FA does differs."""
    keys = {"fraction-train": 0.5, "min-train-nodes": 2, "num-server-rounds": 3}
    bp, flfa = (run_app(tmp_path, {**keys, "flfa": x}) for x in ("none", "lowest"))
    participants = [[row["participants"] for row in metrics(x)] for x in (bp, flfa)]
    assert participants[0] == participants[1]
    # Round 1 has no FA, so everything in it is equal, batch order included.
    first = [metrics(x)[0] for x in (bp, flfa)]
    assert first[0] == first[1]
    assert metrics(bp)[2] != metrics(flfa)[2]


def test_the_first_layer_alone_changes_nothing(tmp_path: Path) -> None:
    """F = {first layer} equals F = {}: its input needs no gradient."""
    fixed = {"flfa": "fixed", "fixed-fa-layers": "conv1", "candidates": "all"}
    bp, flfa = (run_app(tmp_path, x) for x in ({"flfa": "none"}, fixed))
    assert_same_model(bp, flfa)
    assert metrics(flfa)[0]["selected"] == ["conv1"]


def test_one_local_step_a_round_is_the_base_method(tmp_path: Path) -> None:
    """The first step of a round has B = w, so FA in every layer is backpropagation."""
    step = {"batch-size": 10**6, "num-fa-layers": 3}
    bp, flfa = (run_app(tmp_path, {**step, "flfa": x}) for x in ("none", "lowest"))
    assert [len(row["selected"]) for row in metrics(flfa)] == [0, 3, 3]
    assert_same_model(bp, flfa)
    assert [r["drift"] for r in metrics(bp)] == [r["drift"] for r in metrics(flfa)]


def test_flfa_adds_only_names_to_the_wire(tmp_path: Path) -> None:
    rows = [metrics(run_app(tmp_path, {"flfa": x})) for x in ("none", "lowest")]
    for bp, flfa in zip(*rows, strict=True):
        messages = len(bp["participants"])
        extra = flfa["bytes-sent"] - bp["bytes-sent"]
        names = sum(len(name) for name in flfa["selected"])
        # Protobuf frames each name and each list with a few bytes.
        assert names * messages <= extra <= (names + 16) * messages
        assert flfa["bytes-received"] == bp["bytes-received"]


def test_integer_buffers_keep_type_and_value(tmp_path: Path) -> None:
    """Four clients count the same steps: the mean of equal counters is the counter."""
    equal = {"norm": "batch", "partitioner": "iid", "batch-size": 10**6}
    state = bits(run_app(tmp_path, equal))
    counters = {k: v for k, v in state.items() if k.endswith("num_batches_tracked")}
    assert len(counters) == 3
    for counter in counters.values():
        assert counter.dtype == torch.int64
        assert counter.item() == 3  # one step in each of three rounds


def test_a_failing_client_is_left_out(tmp_path: Path) -> None:
    def fault(partition_id: int, message: Message) -> None:
        if message.metadata.message_type == MessageType.TRAIN and partition_id == 2:
            raise RuntimeError("out of memory")

    keys = {"fraction-train": 1.0}
    rows = metrics(run_app(tmp_path, keys, fault=fault))
    assert [row["failed"] for row in rows] == [[2], [2], [2]]


def test_a_run_without_any_update_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"round 1: none of 2 .*lower the learning"):
        run_app(tmp_path, {"learning-rate": 1e30, "norm": "batch"})
    (results,) = tmp_path.iterdir()
    assert not (results / "summary.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_all_that_machine_and_model_have_against_a_config_at_once(
    tmp_path: Path,
) -> None:
    keys = {"flfa": "fixed", "fixed-fa-layers": "foo, conv1"}
    with pytest.raises(ConfigError) as caught:
        run_app(tmp_path, {**keys, "device": "cuda"})
    for text in (
        "device is 'cuda'",
        "fixed-fa-layers names foo",
        "fixed-fa-layers names conv1",
    ):
        assert text in str(caught.value)


def test_a_federation_of_one(tmp_path: Path) -> None:
    rows = metrics(run_app(tmp_path, nodes=1))
    assert [row["participants"] for row in rows] == [[0], [0], [0]]
    assert [row["drift"] for row in rows] == [0, 0, 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num-fa-layers": 4}, r"num-fa-layers is 4; .* at most 3: cnn has"),
        (
            {"flfa": "fixed", "fixed-fa-layers": "conv1, conv9"},
            r"names conv1: its input carries no gradient(.|\n)*names conv9; cnn has",
        ),
        (
            {"flfa": "fixed", "fixed-fa-layers": "head", "feedback": "dfa"},
            r"names head: feedback 'dfa' has no effect on the last layer",
        ),
        ({"min-partition-size": 10**6}, "min-partition-size is 1000000"),
    ],
)
def test_what_the_model_or_the_data_cannot_do_stops_the_run_at_once(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises((ConfigError, RuntimeError), match=message):
        run_app(tmp_path, keys)
    assert not list(tmp_path.glob("*/metrics.jsonl"))
