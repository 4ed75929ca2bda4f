"""The metrics and plots of whole runs, against independent measurements."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from flfa_app import server_app
from flfa_app.config import RunConfig
from flfa_app.preflight import Prepared, prepare
from flfa_app.results.records import Evaluation, read_records
from flfa_app.results.round_metrics import drift_reduction, relative_time
from flfa_app.server import evaluation
from flfa_app.server.evaluation import evaluate
from flfa_app.task import model_of
from strategies.rules import skewness
from tests.federation import run_app


class Run:
    """The records and the summary of a finished run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.summary = json.loads((path / "summary.json").read_text())
        self.records = read_records(path / "metrics.jsonl")
        self.evaluations = [r.evaluation for r in self.records if r.evaluation]


class ObservedRun(NamedTuple):
    """A run of three rounds with FLFA, and what was observed of it."""

    run: Run
    accuracy_and_loss: list[tuple[float, float]]
    test_set: tuple[Any, ...]
    log: list[str]


@torch.inference_mode()
def plain_loop(model: nn.Module, images: Any, labels: Any) -> tuple[float, float]:
    """Accuracy and loss without anything that makes the evaluation faster."""
    model.eval()
    right, loss = 0, 0.0
    for start in range(0, len(labels), 512):
        logits, y = model(images[start : start + 512]), labels[start : start + 512]
        right += int((logits.argmax(1) == y).sum())
        loss += float(functional.cross_entropy(logits, y, reduction="sum"))
    return right / len(labels), loss / len(labels)


@pytest.fixture(scope="module")
def flfa(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    """Every evaluated model is measured with the plain loop as well."""
    measured, test_sets, lines = [], [], []

    def spy(model: nn.Module, images: Any, labels: Any, extra: Any) -> Evaluation:
        measured.append(plain_loop(model, images, labels))
        test_sets.append((images, labels, extra))
        return evaluate(model, images, labels, extra)

    def note(level: int, text: str, *values: Any) -> None:
        lines.append(text % values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "evaluate", spy)
        patch.setattr("flfa_app.server.loop.log", note)
        path = run_app(tmp_path_factory.mktemp("flfa"), {"num-fa-layers": 2})
    return ObservedRun(Run(path), measured, test_sets[-1], lines)


def test_every_round_has_a_log_line_and_every_metric(flfa: ObservedRun) -> None:
    """Accuracy and loss have the bits of the plain loop."""
    measured = flfa.run.evaluations
    assert [(e.accuracy, e.loss) for e in measured] == flfa.accuracy_and_loss
    assert len(measured) == 3
    for e in measured:
        assert all(map(math.isfinite, (e.intra_class, e.inter_class)))
        assert 0 <= e.auc <= 1
        assert e.separability == e.inter_class / e.intra_class
        assert e.extra_accuracy == {}
    starts = [line.partition("/")[0] for line in flfa.log]
    assert starts == [f"round {i}" for i in (1, 2, 3)]
    assert not any("\n" in line for line in flfa.log)


def test_the_final_model_has_the_metrics_of_the_last_line(flfa: ObservedRun) -> None:
    """Loaded from its file and measured again."""
    model = model_of(RunConfig())
    model.load_state_dict(load_file(flfa.run.path / "model.safetensors"))
    assert flfa.run.evaluations[-1] == evaluate(model, *flfa.test_set)


def test_the_summary_aggregates_the_rounds(flfa: ObservedRun) -> None:
    """Three rounds: the last 10 % is the last one."""
    summary, records = flfa.run.summary, flfa.run.records
    assert summary["auc"] == flfa.run.evaluations[-1].auc
    assert summary["extra-accuracy"] == {}
    chosen = [name for record in records for name in record.selected]
    layers = ["conv1", "conv2", "conv3", "head"]
    assert len(chosen) == 4
    assert summary["selection-frequency"] == {x: chosen.count(x) / 4 for x in layers}
    assert summary["round-1-skewness"] == skewness(records[0].scores.values())
    assert 0 < summary["seconds-per-round"] <= summary["seconds"] / 3


def test_a_run_without_flfa_can_be_compared(flfa: ObservedRun, tmp_path: Path) -> None:
    """Round 1 has no feedback alignment, so the drift is the same."""
    bp = Run(run_app(tmp_path, {"flfa": "none"}))
    assert bp.summary["selection-frequency"] == {}
    assert bp.summary["round-1-skewness"] is not None
    assert (bp.path / "cosines.png").exists()
    reduction = drift_reduction(bp.records, flfa.run.records)
    assert list(reduction) == [1, 2, 3]
    assert reduction[1] == 0 != reduction[3]
    assert relative_time(flfa.run.records, bp.records) > 0


def test_a_model_that_learns_separates_its_classes(tmp_path: Path) -> None:
    keys = {"partitioner": "iid", "fraction-train": 1.0, "pictures": False}
    run = Run(run_app(tmp_path, keys))
    first, *_, last = run.evaluations
    assert last.accuracy > max(0.8, first.accuracy)
    assert last.auc > max(0.95, first.auc)
    assert last.separability > first.separability


def test_further_test_sets_are_evaluated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is the test set itself; in the other every label is one too high."""

    def with_extra_tests(config: RunConfig) -> Prepared:
        prepared = prepare(config)
        images, labels = prepared.images.test, prepared.images.test_labels
        extra = {"same": (images, labels), "wrong": (images, (labels + 1) % 10)}
        return replace(prepared, images=replace(prepared.images, extra_tests=extra))

    monkeypatch.setattr(server_app, "prepare", with_extra_tests)
    run = Run(run_app(tmp_path, {"num-server-rounds": 11, "pictures": False}))
    for e in run.evaluations:
        assert e.extra_accuracy["same"] == e.accuracy
        assert e.extra_accuracy["same"] + e.extra_accuracy["wrong"] <= 1
    assert run.summary["extra-accuracy"]["same"] == run.summary["score"]
    last = [e.extra_accuracy["wrong"] for e in run.evaluations[-2:]]
    assert run.summary["extra-accuracy"]["wrong"] == pytest.approx(sum(last) / 2)


def test_without_a_score_there_is_no_plot_of_cosines(tmp_path: Path) -> None:
    """At the smallest learning rate no float32 weight moves: no update, no cosine."""
    run = Run(run_app(tmp_path, {"learning-rate": 1e-30, "num-server-rounds": 1}))
    assert run.summary["round-1-skewness"] is None
    assert not (run.path / "cosines.png").exists()
