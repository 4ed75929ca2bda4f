"""The benchmark commands write what they promise."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import step_cost, train_step
from clients import FedSOLTrainer, MOONTrainer
from clients.methods.anchor import Anchor
from flfa_app.methods import ALGORITHMS


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_step_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_cost, "SAMPLES", 8)
    file = tmp_path / "out.json"
    arguments = ["--model", "cnn", "--repetitions", "3", "--json", str(file)]
    assert step_cost.main(arguments) == 0
    figures = json.loads(file.read_text())
    assert figures["model"] == "cnn"
    measured = {(row["method"], row["flfa"]): row["ratio"] for row in figures["rows"]}
    assert all(ratio > 0 for ratio in measured.values())
    assert measured["fedavg", False] == 1
    assert {arm.algorithm for arm in step_cost.ARMS.values()} == set(ALGORITHMS)
    assert measured.keys() == {(n, f) for n in step_cost.ARMS for f in (False, True)}
    assert "scaffold" in capsys.readouterr().out


def test_too_few_repetitions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step_cost.main(["--repetitions", "2"])
    assert "--repetitions must be 3 or more" in capsys.readouterr().err


def test_train_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_step, "MOST_TURNS", 3)
    monkeypatch.setitem(train_step.PAIRS, "cnn", 4)
    file = tmp_path / "out.json"
    train_step.main(["--model", "cnn", "--json", str(file)])
    ratio, flfa, seconds = json.loads(file.read_text())["figures"]
    assert ratio["name"] == "step of `cnn`: stock PyTorch / ours"
    assert flfa["name"] == "step of `cnn`: FLFA / its base"
    assert (seconds["name"], seconds["unit"]) == ("step of `cnn`, ours", "s")
    for figure in (ratio, seconds):
        lower, upper = figure["quartiles"]
        assert 0 < lower <= figure["value"] <= upper
    assert flfa["value"] > 0
    assert ratio["reached"] is seconds["reached"] is None
    assert flfa["reached"] is (flfa["value"] <= 1.02)


def calls_of(kind: type, method: str, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with each call of a method."""
    calls: list[None] = []
    original = getattr(kind, method)

    def counted(*args: Any) -> Any:
        calls.append(None)
        return original(*args)

    monkeypatch.setattr(kind, method, counted)
    return calls


@pytest.mark.parametrize("name", step_cost.ARMS)
def test_every_arm_does_the_work_of_its_method(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all ten steps of a round, but for FedSOL's first."""
    monkeypatch.setattr(step_cost, "SAMPLES", 8)
    edits = calls_of(Anchor, "add", monkeypatch)
    perturbed = calls_of(FedSOLTrainer, "_proximal_gradients", monkeypatch)
    contrasts = calls_of(MOONTrainer, "_contrast", monkeypatch)
    client = step_cost._Client("cnn", step_cost.ARMS[name])
    client(lambda: None)  # has no state yet
    for calls in (edits, perturbed, contrasts):
        calls.clear()
    client(lambda: None)
    steps = 2 * len(client.pairs[-1])  # each is taken with and without alignment
    algorithm = step_cost.ARMS[name].algorithm
    assert len(edits) == {
        "fedprox": steps,
        "fedacg": steps,
        "feddyn": 2 * steps,
        "scaffold": steps,
    }.get(algorithm, 0)
    assert len(perturbed) == (steps - 2 if algorithm == "fedsol" else 0)
    assert len(contrasts) == (steps if algorithm == "moon" else 0)
