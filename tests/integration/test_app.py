"""The app as a whole, in one process.

What holds for every method, FedAvg included, is in ``test_methods.py``.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flfa_app.errors import ConfigError
from tests.federation import metrics, run_app

SMALL = {"pictures": False, "train-fraction": 0.3}


@pytest.fixture(scope="module")
def bp_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with backpropagation alone."""
    return run_app(tmp_path_factory.mktemp("bp"), {**SMALL, "flfa": "none"})


@pytest.fixture(scope="module")
def flfa_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with FLFA in the two layers with the lowest scores."""
    keys = {**SMALL, "flfa": "lowest", "num-fa-layers": 2}
    return run_app(tmp_path_factory.mktemp("flfa"), keys)


def test_a_run_writes_all_its_files(tmp_path: Path) -> None:
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


def test_selection_follows_the_scores_of_the_previous_round(flfa_run: Path) -> None:
    rows = metrics(flfa_run)
    assert rows[0]["selected"] == []
    for previous, row in pairwise(rows):
        scores = {k: v for k, v in previous["scores"].items() if k != "conv1"}
        assert row["selected"] == sorted(scores, key=scores.__getitem__)[:2]


def test_backpropagation_and_flfa_are_paired(bp_run: Path, flfa_run: Path) -> None:
    """Same partition, participants, weights and batches: only what FA does differs."""
    bp, flfa = metrics(bp_run), metrics(flfa_run)
    assert [r["participants"] for r in bp] == [r["participants"] for r in flfa]
    # Round 1 has no FA, so everything in it is equal, batch order included.
    assert bp[0] == flfa[0]
    assert bp[2] != flfa[2]


def test_feedback_alignment_in_the_first_layer_alone_changes_nothing(
    bp_run: Path, tmp_path: Path
) -> None:
    """The first layer's input needs no gradient."""
    fixed = {"flfa": "fixed", "fixed-fa-layers": "conv1", "candidates": "all"}
    run = run_app(tmp_path, {**SMALL, **fixed})
    assert metrics(run)[0]["selected"] == ["conv1"]
    expected = load_file(bp_run / "model.safetensors")
    for name, tensor in load_file(run / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_flfa_adds_only_names_to_the_messages(bp_run: Path, flfa_run: Path) -> None:
    for bp, flfa in zip(metrics(bp_run), metrics(flfa_run), strict=True):
        messages = len(bp["participants"])
        extra = flfa["bytes-sent"] - bp["bytes-sent"]
        names = sum(len(name) for name in flfa["selected"])
        # Protobuf frames each name and each list with a few bytes.
        assert names * messages <= extra <= (names + 16) * messages
        assert flfa["bytes-received"] == bp["bytes-received"]


def test_a_run_without_any_valid_update_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"round 1: none of 2 .*lower the learning"):
        run_app(tmp_path, {"learning-rate": 1e30, "norm": "batch"})
    (results,) = tmp_path.iterdir()
    assert not (results / "summary.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_all_problems_of_machine_and_model_are_reported_at_once(
    tmp_path: Path,
) -> None:
    keys = {"flfa": "fixed", "fixed-fa-layers": "foo, conv1", "device": "cuda"}
    with pytest.raises(ConfigError) as caught:
        run_app(tmp_path, keys)
    for text in (
        "device is 'cuda'",
        "fixed-fa-layers names foo",
        "fixed-fa-layers names conv1",
    ):
        assert text in str(caught.value)


def test_a_federation_of_one_node(tmp_path: Path) -> None:
    rows = metrics(run_app(tmp_path, {**SMALL, "num-server-rounds": 2}, nodes=1))
    assert [row["participants"] for row in rows] == [[0], [0]]
    assert [row["drift"] for row in rows] == [0, 0]


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
def test_a_config_that_model_or_data_cannot_fulfil_is_refused(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises((ConfigError, RuntimeError), match=message):
        run_app(tmp_path, keys)
    assert not list(tmp_path.glob("*/metrics.jsonl"))
