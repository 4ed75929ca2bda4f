"""The record of a round, and how it is written to and read from JSON.

``metrics.jsonl`` has one line per round; a checkpoint has the same objects under
``rows``. Their keys and the order of the keys are those of the fields here. JSON has
no nan and no infinity: both are written as null, and null is read back as nan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from flfa_app.files import replace_non_finite

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """What was measured on the test set after a round."""

    accuracy: float
    loss: float = math.nan
    auc: float = math.nan
    intra_class: float = math.nan
    inter_class: float = math.nan
    separability: float = math.nan
    extra_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracy on each further test set, by its name."""
    further: Mapping[str, float] = field(default_factory=dict)
    """Other metrics of the test set, by their key in ``metrics.jsonl``."""


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
    """What is recorded of one round; the defaults stand for "not measured"."""

    server_round: int
    evaluation: Evaluation | None = None
    drift: float = math.nan
    """The local drift H of the clients."""
    selected: tuple[str, ...] = ()
    """Layers that were trained with feedback alignment."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Agreement z of each layer after this round, in the order of the model."""
    train_loss: float = math.nan
    learning_rate: float = math.nan
    participants: tuple[int, ...] = ()
    """Partition ids of the clients that were asked to train."""
    failed: tuple[int, ...] = ()
    """Participants whose reply was missing or bad."""
    failed_before: tuple[int, ...] = ()
    """Clients that failed in earlier attempts at this round."""
    spare: tuple[int, ...] = ()
    """Participants beyond the number needed."""
    traffic: Traffic = Traffic()
    diagnostics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """``angle`` and ``error`` of the selected layers."""
    timing: Timing = Timing()

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``metrics.jsonl`` for this round.

        The keys of an evaluation and of diagnostics are absent if there are none.
        """
        written: dict[str, Any] = replace_non_finite(_to_keys(self))
        return written

    def to_line(self) -> str:
        """Return the line of ``metrics.jsonl`` for this round."""
        return json.dumps(self.to_json(), allow_nan=False) + "\n"

    def describe(self, num_rounds: int) -> str:
        """Return a line for people who follow a run of ``num_rounds`` rounds."""
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

        Keys that an older version did not write are not measured. Raises
        :class:`ValueError` if the object is not that of a round.
        """
        number = written.get("round") if isinstance(written, Mapping) else None
        if not isinstance(number, int):
            raise ValueError("it holds no JSON object with the number of a round")
        values = _with_nan(written)
        evaluation = None
        if "accuracy" in values:
            further = {key: values[key] for key in values if key not in _KNOWN_KEYS}
            evaluation = _from_keys(Evaluation, values, further=further)
        return _from_keys(
            cls,
            values,
            evaluation=evaluation,
            traffic=_from_keys(Traffic, values),
            timing=_from_keys(Timing, values.get("seconds", {})),
        )


def read_records(file: Path) -> list[RoundRecord]:
    """Return the rounds in a ``metrics.jsonl``; raise OSError or ValueError if bad."""
    lines = file.read_text("utf-8").splitlines()
    return [RoundRecord.from_json(json.loads(line)) for line in lines]


def _key(field_name: str) -> str:
    return "round" if field_name == "server_round" else field_name.replace("_", "-")


def _to_keys(part: Evaluation | Traffic | RoundRecord) -> dict[str, Any]:
    """Return the fields under their keys; those of most parts join their record's."""
    values: dict[str, Any] = {}
    for name, value in vars(part).items():
        if isinstance(value, Evaluation | Traffic):
            values |= _to_keys(value)
        elif isinstance(value, Timing):
            values["seconds"] = vars(value)
        elif name == "further":
            values |= value
        elif name not in ("evaluation", "diagnostics") or value:
            values[_key(name)] = value
    return values


def _from_keys(record_type: type[T], values: Mapping[str, Any], **parts: Any) -> T:
    """Return a record of the fields whose keys are present, and of its parts."""
    keys = {f.name: _key(f.name) for f in fields(record_type)}  # type: ignore[arg-type]
    present = {name: values[key] for name, key in keys.items() if key in values}
    return record_type(**{**present, **parts})


def _with_nan(value: Any) -> Any:
    """Return a JSON value with nan in place of null, and tuples for lists."""
    if value is None:
        return math.nan
    if isinstance(value, Mapping):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_with_nan(item) for item in value)
    return value


_KNOWN_KEYS = _to_keys(RoundRecord(0, Evaluation(0), diagnostics={"layer": {}})).keys()
