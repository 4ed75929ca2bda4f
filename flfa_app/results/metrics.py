"""The metrics of a run, each declared once.

``summary.json``, grid files, tables and reports read :data:`METRICS`. To add a metric,
add its :class:`MetricSpec` there, and its formula to ``docs/metrics.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flfa_app.models import block_of
from flfa_app.results.prediction_metrics import Predictions
from flfa_app.results.records import RoundRecord
from flfa_app.results.round_metrics import (
    accuracies,
    first_cosines,
    mean_of_last_rounds,
    selection_frequency,
)
from strategies.rules import skewness


@dataclass(frozen=True)
class FinishedRun:
    """What the metrics of a run are computed from."""

    model: str
    records: Sequence[RoundRecord]
    best_round: int
    """The round of ``best_model.safetensors``."""
    no_op_rounds: int | None
    """Rounds whose scores would have chosen only layers without effect; None if the
    selection rule chooses by no scores or from all layers."""
    stopped_early: str | None
    """Why the run ended before its last round; None if it did not."""
    seconds: float
    """Wall-clock time of the run, or of its last part if it was resumed."""


@dataclass(frozen=True)
class MetricSpec:
    """The declaration of a metric: a key of ``summary.json``, and how it is shown."""

    key: str
    title: str
    """Heading of its tables, without the unit."""
    summarize: Callable[[FinishedRun], Any] | None = None
    """The metric of a whole run. By default the mean of the measured values over the
    last 10 % of the rounds."""
    measure: Callable[[Predictions], float] | None = None
    """The metric of one model on the test set, if it is not a field of
    :class:`~flfa_app.results.records.Evaluation`. It is computed at every evaluation
    and recorded in ``Evaluation.further``."""
    percent: bool = False
    """A share, which tables show in percent."""
    by_part: bool = False
    """A value for each part (test set, block of the model) instead of one."""
    higher_is_better: bool = False
    """Tables mark the best value and show differences."""
    own_table: bool = False
    """Reports have a table of it whenever a run has it, not only on demand."""
    label: str = ""
    """Short name; the key by default. The table of published numbers has it too."""
    is_number: bool = True
    """False for texts, which tables cannot show."""

    def of_run(self, run: FinishedRun) -> Any:
        """Return the value for ``summary.json``."""
        if self.summarize is not None:
            return self.summarize(run)
        return mean_of_last_rounds(run.records, lambda e: e.further.get(self.key))


def _extra_accuracy(run: FinishedRun) -> dict[str, float]:
    def mean(name: str) -> float:
        return mean_of_last_rounds(run.records, lambda e: e.extra_accuracy.get(name))

    last = run.records[-1].evaluation
    return {name: mean(name) for name in last.extra_accuracy} if last else {}


def _first_skewness(run: FinishedRun) -> float | None:
    cosines = first_cosines(run.records).values()
    return skewness(cosines) if cosines else None


def _seconds_per_round(run: FinishedRun) -> float:
    total = math.fsum(record.timing.total for record in run.records)
    return round(total / len(run.records), 3)


_quality = partial(MetricSpec, percent=True, higher_is_better=True)

METRICS: Mapping[str, MetricSpec] = {
    spec.key: spec
    for spec in (
        _quality(
            "score",
            "Accuracy: mean of the last 10 % of the rounds",
            lambda run: mean_of_last_rounds(run.records, lambda e: e.accuracy),
            label="accuracy",
        ),
        _quality(
            "final-accuracy",
            "Accuracy after the last round",
            lambda run: [*accuracies(run.records).values()][-1],
        ),
        _quality(
            "best-accuracy",
            "Accuracy of the best round",
            lambda run: accuracies(run.records)[run.best_round],
        ),
        MetricSpec(
            "best-round", "The round with the best accuracy", lambda run: run.best_round
        ),
        _quality(
            "auc",
            "Macro-AUC: mean of the last 10 % of the rounds",
            lambda run: mean_of_last_rounds(run.records, lambda e: e.auc),
            own_table=True,
            label="AUC",
        ),
        _quality(
            "extra-accuracy",
            "Accuracy on further test sets",
            _extra_accuracy,
            by_part=True,
            own_table=True,
        ),
        MetricSpec(
            "mean-drift",
            "Local drift H: mean of the rounds",
            lambda run: math.fsum(r.drift for r in run.records) / len(run.records),
        ),
        MetricSpec(
            "selection-frequency",
            "Share of the selections per block of the model",
            lambda run: selection_frequency(run.records, partial(block_of, run.model)),
            percent=True,
            by_part=True,
        ),
        MetricSpec(
            "round-1-skewness",
            "Skewness of the layers' scores in round 1",
            _first_skewness,
        ),
        MetricSpec("rounds", "Rounds", lambda run: len(run.records)),
        MetricSpec("seconds-per-round", "Seconds per round", _seconds_per_round),
        MetricSpec(
            "bytes-sent",
            "Bytes sent to the clients",
            lambda run: sum(r.traffic.bytes_sent for r in run.records),
        ),
        MetricSpec(
            "bytes-received",
            "Bytes received from the clients",
            lambda run: sum(r.traffic.bytes_received for r in run.records),
        ),
        MetricSpec(
            "rounds-a-no-op-layer-would-have-been-chosen",
            "Rounds in which a layer without effect would have been chosen",
            lambda run: run.no_op_rounds,
        ),
        MetricSpec(
            "stopped-early",
            "Why the run stopped early",
            lambda run: run.stopped_early,
            is_number=False,
        ),
        MetricSpec("seconds", "Seconds of the whole run", lambda run: run.seconds),
    )
}
"""Every metric of a run by its key, in the order of ``summary.json``."""
