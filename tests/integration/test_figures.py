"""The figures of a whole run: what is in its files, and that it is true."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from flfa_app import server_app
from flfa_app.config import RunConfig
from flfa_app.preflight import Prepared, prepare
from flfa_app.results.records import Evaluation, read_records
from flfa_app.results.round_metrics import (
    drift_reduction,
    first_cosines,
    relative_time,
)
from flfa_app.server import evaluation
from flfa_app.server.evaluation import evaluate
from flfa_app.task import model_of
from strategies.rules import skewness
from tests.federation import default_keys, metrics, run_app

FIGURES = ("accuracy", "loss", "auc", "intra-class", "inter-class", "separability")


def summary_of(results: Path) -> dict[str, Any]:
    return dict(json.loads((results / "summary.json").read_text()))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Accuracy and loss of every evaluated model, measured with the plain loop."""
    figures: list[tuple[float, float]] = []

    @torch.inference_mode()
    def spy(model: nn.Module, images: Any, labels: Any, *more: Any) -> dict[str, Any]:
        model.eval()
        right, loss = 0, 0.0
        for start in range(0, len(labels), 512):
            logits, y = model(images[start : start + 512]), labels[start : start + 512]
            right += int((logits.argmax(1) == y).sum())
            loss += float(functional.cross_entropy(logits, y, reduction="sum"))
        figures.append((right / len(labels), loss / len(labels)))
        return evaluate(model, images, labels, *more)

    monkeypatch.setattr(evaluation, "evaluate", spy)
    return figures


def test_every_round_has_every_figure(
    tmp_path: Path, seen: list[tuple[float, float]]
) -> None:
    """Accuracy and loss have the bits of the plain loop."""
    rows = metrics(run_app(tmp_path))
    assert [(row["accuracy"], row["loss"]) for row in rows] == seen
    for row in rows:
        assert all(math.isfinite(row[key]) for key in FIGURES)
        assert 0 <= row["auc"] <= 1
        assert row["separability"] == row["inter-class"] / row["intra-class"]
        assert row["extra-accuracy"] == {}


def test_a_model_that_learns_separates_its_classes(tmp_path: Path) -> None:
    rows = metrics(run_app(tmp_path, {"partitioner": "iid", "fraction-train": 1.0}))
    assert rows[-1]["accuracy"] > max(0.8, rows[0]["accuracy"])
    assert rows[-1]["auc"] > max(0.95, rows[0]["auc"])
    assert rows[-1]["separability"] > rows[0]["separability"]


def test_the_summary_sums_up_the_rounds(tmp_path: Path) -> None:
    """Three rounds: the last 10 % is the last one."""
    results = run_app(tmp_path, {"num-fa-layers": 2})
    summary, rows = summary_of(results), metrics(results)
    assert summary["auc"] == rows[-1]["auc"]
    assert summary["extra-accuracy"] == {}
    chosen = [name for row in rows for name in row["selected"]]
    layers = ["conv1", "conv2", "conv3", "head"]
    assert len(chosen) == 4
    assert summary["selection-frequency"] == {x: chosen.count(x) / 4 for x in layers}
    assert summary["round-1-skewness"] == skewness(rows[0]["scores"].values())
    assert 0 < summary["seconds-per-round"] <= summary["seconds"] / 3


def test_a_further_test_set_is_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is the test set itself; in the other every label is one too high."""

    def with_extra_tests(config: RunConfig) -> Prepared:
        ready = prepare(config)
        images, labels = ready.images.test, ready.images.test_labels
        extra = {"same": (images, labels), "wrong": (images, (labels + 1) % 10)}
        return replace(ready, images=replace(ready.images, extra_tests=extra))

    monkeypatch.setattr(server_app, "prepare", with_extra_tests)
    results = run_app(tmp_path, {"num-server-rounds": 11})
    summary, rows = summary_of(results), metrics(results)
    for row in rows:
        same, wrong = row["extra-accuracy"]["same"], row["extra-accuracy"]["wrong"]
        assert same == row["accuracy"]
        assert same + wrong <= 1
    assert summary["extra-accuracy"]["same"] == summary["score"]
    last = [row["extra-accuracy"]["wrong"] for row in rows[-2:]]
    assert summary["extra-accuracy"]["wrong"] == pytest.approx(sum(last) / 2)


def test_backpropagation_has_cosines_but_no_selection(tmp_path: Path) -> None:
    results = run_app(tmp_path, {"flfa": "none"})
    summary = summary_of(results)
    assert summary["selection-frequency"] == {}
    assert summary["round-1-skewness"] is not None
    assert (results / "cosines.png").exists()


def test_without_a_score_there_is_no_picture_of_cosines(tmp_path: Path) -> None:
    """At the smallest learning rate no float32 weight moves: no update, no cosine."""
    results = run_app(tmp_path, {"learning-rate": 1e-30, "num-server-rounds": 1})
    assert first_cosines(read_records(results / "metrics.jsonl")) == {}
    assert summary_of(results)["round-1-skewness"] is None
    assert not (results / "cosines.png").exists()


def test_paired_runs_can_be_compared_round_by_round(tmp_path: Path) -> None:
    """Round 1 has no feedback alignment, so the drift is the same."""
    runs = [run_app(tmp_path, {"flfa": rule}) for rule in ("none", "lowest")]
    bp, flfa = (read_records(run / "metrics.jsonl") for run in runs)
    reduction = drift_reduction(bp, flfa)
    assert list(reduction) == [1, 2, 3]
    assert reduction[1] == 0 != reduction[3]
    assert relative_time(flfa, bp) > 0


def test_the_final_model_has_the_figures_of_the_last_line(tmp_path: Path) -> None:
    """Loaded from its file and measured again."""
    images: list[Any] = []

    def keep(model: nn.Module, *test: Any) -> Evaluation:
        images[:] = test
        return evaluate(model, *test)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "evaluate", keep)
        results = run_app(tmp_path, {"num-server-rounds": 1})
    model = model_of(RunConfig.parse(default_keys()))
    model.load_state_dict(load_file(results / "model.safetensors"))
    (record,) = read_records(results / "metrics.jsonl")
    assert record.evaluation == evaluate(model, *images)


def test_a_round_is_one_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def note(level: int, text: str, *values: Any) -> None:
        lines.append(text % values)

    monkeypatch.setattr("flfa_app.server.loop.log", note)
    run_app(tmp_path)
    assert [line.partition("/")[0] for line in lines] == [
        f"round {i}" for i in (1, 2, 3)
    ]
    assert not any("\n" in line for line in lines)
