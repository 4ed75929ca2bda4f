"""The declared metrics, and the summary of a run that follows from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flfa_app.results import metrics
from flfa_app.results.metrics import METRICS, FinishedRun, MetricSpec
from flfa_app.results.prediction_metrics import Predictions
from flfa_app.results.records import Evaluation, RoundRecord, Timing, Traffic
from flfa_app.server.evaluation import evaluate
from tests.federation import ROOT

SCORES = {"conv1": 0.0, "conv2": 0.0, "conv3": 0.0, "head": 1.0}


def record(i: int) -> RoundRecord:
    return RoundRecord(
        i,
        Evaluation(
            accuracy=0.9 if i == 7 else i / 100,
            auc=0.5 + i / 100,
            extra_accuracy={"elsewhere": i / 200},
        ),
        drift=i,
        selected=() if i == 1 else ("conv2",) if i <= 4 else ("head",),
        scores=SCORES if i == 1 else dict.fromkeys(SCORES, 0.5),
        traffic=Traffic(bytes_sent=10, bytes_received=20),
        timing=Timing(train=1.0, aggregate=0.5, evaluate=0.25),
    )


RUN = FinishedRun("cnn", [record(i) for i in range(1, 21)], 7, 3, None, 99.5)


def test_the_metrics_of_a_run() -> None:
    """Twenty rounds: the last 10 % are rounds 19 and 20.

    Their accuracies 0.19 and 0.20 have the mean 0.195, and so on. From round 2 on a
    layer is selected: 19 times, 3 of them conv2. The first scores are 0, 0, 0 and 1:
    their mean is 1/4, the second central moment (3 (1/4)² + (3/4)²) / 4 = 3/16, the
    third (-3 (1/4)³ + (3/4)³) / 4 = 3/32, the skewness 3/32 / (3/16)^1.5 = 2/√3. A
    round takes 1 + 0.5 + 0.25 seconds.
    """
    shares = {"conv1": 0, "conv2": 3 / 19, "conv3": 0, "head": 16 / 19}
    summary = {key: spec.of_run(RUN) for key, spec in METRICS.items()}
    assert json.dumps(summary)
    assert summary == {
        "score": pytest.approx(0.195),
        "final-accuracy": 0.2,
        "best-accuracy": 0.9,
        "best-round": 7,
        "auc": pytest.approx(0.695),
        "extra-accuracy": {"elsewhere": pytest.approx(0.0975)},
        "mean-drift": 10.5,
        "selection-frequency": shares,
        "round-1-skewness": pytest.approx(2 / math.sqrt(3)),
        "rounds": 20,
        "seconds-per-round": 1.75,
        "bytes-sent": 200,
        "bytes-received": 400,
        "rounds-a-no-op-layer-would-have-been-chosen": 3,
        "stopped-early": None,
        "seconds": 99.5,
    }


def test_every_key_of_the_files_is_documented() -> None:
    """With the metrics, or with the files of a run."""
    docs = ROOT / "docs"
    text = "".join((docs / name).read_text() for name in ("metrics.md", "run-files.md"))
    full = replace(RUN.records[0], diagnostics={"head": {"angle": 80.0}})
    keys = {*METRICS, *full.to_json()}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_a_run_without_scores_has_no_skewness_and_no_selection() -> None:
    records = [RoundRecord(1, Evaluation(0.5), scores={"head": math.nan})]
    run = replace(RUN, records=records)
    assert METRICS["round-1-skewness"].of_run(run) is None
    assert METRICS["selection-frequency"].of_run(run) == {}


def test_a_declared_metric_is_measured_recorded_and_summarized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Share of the samples that are assigned to class 0."""

    def share_of_class_0(predictions: Predictions) -> float:
        assert predictions.probabilities.dtype == np.float64
        assert predictions.features.shape == (20, 4)
        return float((predictions.logits.argmax(1) == 0).mean())

    spec = MetricSpec("class-0", "Share of class 0", measure=share_of_class_0)
    monkeypatch.setitem(metrics.METRICS, "class-0", spec)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    images, labels = torch.randn(20, 3), torch.arange(20) % 2
    evaluation = evaluate(model, images, labels)
    with torch.no_grad():
        expected = float((model(images).argmax(1) == 0).float().mean())
    assert 0 < expected < 1
    assert evaluation.further == {"class-0": pytest.approx(expected)}
    measured = RoundRecord(20, evaluation)
    assert measured.to_json()["class-0"] == evaluation.further["class-0"]
    other = RoundRecord(19, Evaluation(0.5, further={"class-0": 0.0}))
    run = replace(RUN, records=[*RUN.records[:18], other, measured])
    assert spec.of_run(run) == pytest.approx(expected / 2)
    counted = replace(spec, summarize=lambda run: len(run.records))
    assert counted.of_run(run) == 20
