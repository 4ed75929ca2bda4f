"""The record of a round, and how it is written to and read from JSON.

``metrics.jsonl`` has one line per round; a checkpoint has the same objects under
``rows``. Only this module knows their keys and the order of the keys. JSON has no nan
and no infinity: both are written as null, and null is read back as nan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flfa_app.files import replace_non_finite

__all__ = [
    "Evaluation",
    "RoundRecord",
    "Timing",
    "Traffic",
    "read_records",
]


@dataclass(frozen=True)
class Evaluation:
    """What was measured on the test set after a round.

    Attributes
    ----------
    accuracy : float
        Share of the test samples that are classified correctly.
    loss : float
        Mean cross-entropy.
    auc : float
        Macro-averaged area under the ROC curve, one class against the rest.
    intra_class, inter_class, separability : float
        Distances of the features within and between classes, and their ratio.
    extra_accuracy : Mapping[str, float]
        Accuracy on each further test set, by its name.
    further : Mapping[str, float]
        Other metrics of the test set, by their key in ``metrics.jsonl``.
    """

    accuracy: float
    loss: float = math.nan
    auc: float = math.nan
    intra_class: float = math.nan
    inter_class: float = math.nan
    separability: float = math.nan
    extra_accuracy: Mapping[str, float] = field(default_factory=dict)
    further: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic:
    """Bytes of a round's messages: to the clients, and of the replies that count."""

    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True)
class Timing:
    """Seconds that the parts of a round took."""

    train: float = math.nan
    aggregate: float = math.nan
    evaluate: float = math.nan

    @property
    def total(self) -> float:
        """Seconds of all parts; the evaluation may overlap the next round."""
        return self.train + self.aggregate + self.evaluate

    @property
    def without_evaluation(self) -> float:
        """Seconds of training and aggregation."""
        return self.train + self.aggregate


@dataclass(frozen=True)
class RoundRecord:
    """What is recorded of one round.

    Attributes
    ----------
    server_round : int
        Number of the round; the first is 1.
    evaluation : Evaluation, optional
        None if the model was not evaluated after this round.
    drift : float
        The local drift H of the clients.
    selected : tuple[str, ...]
        Layers that were trained with feedback alignment.
    scores : Mapping[str, float]
        Agreement z of each layer after this round, in the order of the model.
    train_loss : float
        The clients' mean loss.
    learning_rate : float
        The clients' learning rate.
    participants : tuple[int, ...]
        Partition ids of the clients that were asked to train.
    failed, spare : tuple[int, ...]
        Participants whose reply was missing or bad, and those beyond the number needed.
    failed_before : tuple[int, ...]
        Clients that failed in earlier attempts at this round.
    traffic : Traffic
        Bytes sent and received.
    diagnostics : Mapping[str, Mapping[str, float]]
        ``angle`` and ``error`` of the selected layers; empty if not measured.
    timing : Timing
        Seconds of the parts of the round.
    """

    server_round: int
    evaluation: Evaluation | None = None
    drift: float = math.nan
    selected: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    train_loss: float = math.nan
    learning_rate: float = math.nan
    participants: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    failed_before: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    traffic: Traffic = Traffic()
    diagnostics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    timing: Timing = Timing()

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``metrics.jsonl`` for this round.

        The keys of an evaluation and of diagnostics are absent if there are none.
        """
        values: dict[str, Any] = {"round": self.server_round}
        if (evaluation := self.evaluation) is not None:
            values |= {
                "accuracy": evaluation.accuracy,
                "loss": evaluation.loss,
                "auc": evaluation.auc,
                "intra-class": evaluation.intra_class,
                "inter-class": evaluation.inter_class,
                "separability": evaluation.separability,
                "extra-accuracy": evaluation.extra_accuracy,
                **evaluation.further,
            }
        values |= {
            "drift": self.drift,
            "selected": self.selected,
            "scores": self.scores,
            "train-loss": self.train_loss,
            "learning-rate": self.learning_rate,
            "participants": self.participants,
            "failed": self.failed,
            "failed-before": self.failed_before,
            "spare": self.spare,
            "bytes-sent": self.traffic.bytes_sent,
            "bytes-received": self.traffic.bytes_received,
        }
        if self.diagnostics:
            values["diagnostics"] = self.diagnostics
        values["seconds"] = {
            "train": self.timing.train,
            "aggregate": self.timing.aggregate,
            "evaluate": self.timing.evaluate,
        }
        written: dict[str, Any] = replace_non_finite(values)
        return written

    def to_line(self) -> str:
        """Return the line of ``metrics.jsonl`` for this round."""
        return json.dumps(self.to_json(), allow_nan=False) + "\n"

    def describe(self, num_rounds: int) -> str:
        """Return a line for people who follow a run of so many rounds."""
        width = len(str(num_rounds))
        accuracy = f"{100 * self.evaluation.accuracy:5.2f}" if self.evaluation else "-"
        return (
            f"round {self.server_round:{width}}/{num_rounds}  accuracy {accuracy:>5} %"
            f"  drift {self.drift:.3f}  FA: {', '.join(self.selected) or '-'}"
            f"  {self.timing.total:.1f} s"
        )

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> RoundRecord:
        """Return the record of an object of ``metrics.jsonl`` or of a checkpoint.

        Keys that an older version did not write have the values of "not measured".

        Raises
        ------
        ValueError
            If the object is not that of a round.
        """
        number = written.get("round") if isinstance(written, Mapping) else None
        if not isinstance(number, int):
            raise ValueError("it holds no JSON object with the number of a round")
        values: dict[str, Any] = _NOT_MEASURED | _with_nan(written)
        seconds = _NOT_MEASURED["seconds"] | values["seconds"]
        return cls(
            server_round=number,
            evaluation=_evaluation(values) if "accuracy" in written else None,
            drift=values["drift"],
            selected=tuple(values["selected"]),
            scores=values["scores"],
            train_loss=values["train-loss"],
            learning_rate=values["learning-rate"],
            participants=tuple(values["participants"]),
            failed=tuple(values["failed"]),
            failed_before=tuple(values["failed-before"]),
            spare=tuple(values["spare"]),
            traffic=Traffic(values["bytes-sent"], values["bytes-received"]),
            diagnostics=values["diagnostics"],
            timing=Timing(seconds["train"], seconds["aggregate"], seconds["evaluate"]),
        )


def _evaluation(values: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        accuracy=values["accuracy"],
        loss=values["loss"],
        auc=values["auc"],
        intra_class=values["intra-class"],
        inter_class=values["inter-class"],
        separability=values["separability"],
        extra_accuracy=values["extra-accuracy"],
        further={k: value for k, value in values.items() if k not in _NOT_MEASURED},
    )


def read_records(file: Path) -> list[RoundRecord]:
    """Return the rounds in a ``metrics.jsonl``.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read, or a line is not the record of a round.
    """
    lines = file.read_text("utf-8").splitlines()
    return [RoundRecord.from_json(json.loads(line)) for line in lines]


def _with_nan(value: Any) -> Any:
    """Return a JSON value with nan in place of null."""
    if value is None:
        return math.nan
    if isinstance(value, Mapping):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return value


# Every key of a line, with the value it has where nothing was measured.
_NOT_MEASURED: dict[str, Any] = _with_nan(
    {**RoundRecord(0, Evaluation(math.nan)).to_json(), "diagnostics": {}}
)
