"""What the tables show: which numbers of a run, in which unit, against what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from flfa_app.config import KEYS
from flfa_app.experiments.store import Cell, Results
from flfa_app.results.metrics import relative_time

__all__ = ["FLFA_KEYS", "METRICS", "Quantity", "quantities", "settings_without"]

FLFA_KEYS = frozenset(name for name, key in KEYS.items() if key.flfa_only)
METHOD_KEYS = frozenset(name for name, key in KEYS.items() if key.algorithm)
SHARES = frozenset({"score", "final-accuracy", "best-accuracy", "auc"})
SHARES_BY_PART = frozenset({"extra-accuracy", "selection-frequency"})
TITLES = {
    "score": "Accuracy: mean of the last 10 % of the rounds",
    "final-accuracy": "Accuracy after the last round",
    "best-accuracy": "Accuracy of the best round",
    "auc": "Macro-AUC: mean of the last 10 % of the rounds",
    "extra-accuracy": "Accuracy on further test sets",
    "selection-frequency": "Share of the selections per block of the model",
    "time": "Time a round, relative to FedAvg without FLFA",
}
TIME_NOTE = (
    "Median over the rounds, training and aggregation alone, against the FedAvg run "
    "with the same seed. Runs that had more or less of the machine than that one are "
    "not comparable with it."
)
# The numbers of summary.json, the default first.
METRICS = [
    "score",
    "final-accuracy",
    "best-accuracy",
    "auc",
    "extra-accuracy",
    "selection-frequency",
    "best-round",
    "mean-drift",
    "round-1-skewness",
    "rounds-a-no-op-layer-would-have-been-chosen",
    "rounds",
    "seconds-per-round",
    "seconds",
    "bytes-sent",
    "bytes-received",
]
# What the paper calls it.
PAPER = {"score": "accuracy"}

# Numbers of a run by part; a quantity without parts has the one part "".
Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Quantity:
    """A number of a run, or one for each of its parts.

    Attributes
    ----------
    key : str
        Key of ``summary.json``, or ``time``.
    title : str
        For people, with the unit.
    by_part : bool
        A number for each part (test set, block of the model), not one.
    compared : bool
        More is better: the best is bold and differences are shown.
    paper : str
        What the paper's table calls it.
    numbers : Callable[[Cell], Numbers]
        The number of each part, in table units; None or absent where there is none.
    note : str
        What has to be known to read it.
    """

    key: str
    title: str
    by_part: bool
    compared: bool
    paper: str
    numbers: Callable[[Cell], Numbers]
    note: str = ""


def quantities(results: Results) -> list[Quantity]:
    """Return what there is to show: the grid's metric first, others if runs have them.

    Each summary is read once.
    """
    summaries = {cell.id: results.summary(cell) for cell in results.cells}
    metric = results.grid.metric
    further = [
        key
        for key in ("auc", "extra-accuracy")
        if key != metric and any((s or {}).get(key) for s in summaries.values())
    ]
    found = [_from_summaries(key, summaries) for key in (metric, *further)]
    times = _relative_times(results)
    if times:
        found.append(
            Quantity(
                key="time",
                title=TITLES["time"],
                by_part=False,
                compared=False,
                paper="time",
                numbers=lambda cell: {"": times.get(cell.id)},
                note=TIME_NOTE,
            )
        )
    return found


def _from_summaries(key: str, summaries: Mapping[str, Any]) -> Quantity:
    percent = key in SHARES or key in SHARES_BY_PART
    scale = 100.0 if percent else 1.0

    def numbers(cell: Cell) -> Numbers:
        value = (summaries[cell.id] or {}).get(key)
        parts = value if isinstance(value, Mapping) else {"": value}
        return {
            part: scale * number if _is_number(number) else None
            for part, number in parts.items()
        }

    return Quantity(
        key=key,
        title=TITLES.get(key, key) + (", in %" if percent else ""),
        by_part=key in SHARES_BY_PART,
        compared=key in SHARES or key == "extra-accuracy",
        paper=PAPER.get(key, key),
        numbers=numbers,
    )


def _relative_times(results: Results) -> dict[str, float]:
    """Return how many times as long as in FedAvg without FLFA a round of a run takes.

    The run it is compared with has the same seed and settings, method aside.
    """
    finished = {
        cell.id: rounds for cell in results.cells if (rounds := results.rounds(cell))
    }
    reference: dict[str, str] = {}
    for cell in results.cells:
        method = (cell.run_config["algorithm"], cell.run_config["flfa"])
        if cell.id in finished and method == ("fedavg", "none"):
            reference.setdefault(_task(cell), cell.id)
    return {
        cell.id: relative_time(finished[cell.id], finished[reference[_task(cell)]])
        for cell in results.cells
        if cell.id in finished and _task(cell) in reference
    }


def _task(cell: Cell) -> str:
    """Return what a run is about, its method aside."""
    return settings_without(cell, FLFA_KEYS | METHOD_KEYS | {"algorithm"})


def settings_without(cell: Cell, keys: frozenset[str]) -> str:
    """Return a cell's settings but for some keys, as a text that can be compared."""
    kept = {k: v for k, v in cell.run_config.items() if k not in keys}
    return repr((cell.nodes, sorted(kept.items())))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
