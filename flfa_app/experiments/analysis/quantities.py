"""The quantities that tables show: their numbers, units and titles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flfa_app.config import KEYS
from flfa_app.experiments.store import Cell, GridResults
from flfa_app.results.metrics import METRICS, MetricSpec
from flfa_app.results.round_metrics import relative_time

# Keys in which a run with FLFA may differ from its baseline.
FLFA_KEYS = frozenset(name for name, key in KEYS.items() if key.flfa_only)
METHOD_KEYS = frozenset(name for name, key in KEYS.items() if key.algorithm)
TIME_NOTE = (
    "Median over the rounds, training and aggregation alone, against the FedAvg run "
    "with the same seed. Runs that had more or less of the machine than that one are "
    "not comparable with it."
)

# By part; a quantity without parts has the single part "".
PartNumbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Quantity:
    """A number of each run, or one for each part of it (test set, block of the model).

    ``key`` is that of ``summary.json``, or ``time``; ``title`` has the unit, ``label``
    is short, for the report's filter. ``numbers`` returns those of a run in the table's
    unit, None where it has none. If ``higher_is_better``, the table marks the best
    number and shows differences.
    """

    key: str
    title: str
    label: str
    paper_quantity: str
    numbers: Callable[[Cell], PartNumbers]
    by_part: bool = False
    higher_is_better: bool = False
    note: str = ""


def list_quantities(results: GridResults) -> list[Quantity]:
    """Return the quantities to show: the grid's metric first, relative time last.

    Quantities that no run has are left out, except the grid's metric.
    """
    summaries = {cell.id: results.summary(cell) for cell in results.cells}
    key = results.spec.metric
    metric = METRICS.get(key, MetricSpec(key, title=key))
    further = [
        spec
        for spec in METRICS.values()
        if spec.own_table
        and spec is not metric
        and any((summary or {}).get(spec.key) for summary in summaries.values())
    ]
    quantities = [_from_summaries(spec, summaries) for spec in (metric, *further)]
    if times := _relative_times(results):

        def time(cell: Cell) -> PartNumbers:
            return {"": times.get(cell.id)}

        title = "Time a round, relative to FedAvg without FLFA"
        quantities.append(Quantity("time", title, "time", "time", time, note=TIME_NOTE))
    return quantities


def _from_summaries(spec: MetricSpec, summaries: Mapping[str, Any]) -> Quantity:
    scale = 100.0 if spec.percent else 1.0

    def numbers(cell: Cell) -> PartNumbers:
        value = (summaries[cell.id] or {}).get(spec.key)
        parts = value if isinstance(value, Mapping) else {"": value}
        return {
            part: scale * x if isinstance(x, int | float) and math.isfinite(x) else None
            for part, x in parts.items()
        }

    return Quantity(
        key=spec.key,
        title=spec.title + (", in %" if spec.percent else ""),
        label=spec.label or spec.key,
        paper_quantity=(spec.label or spec.key).lower(),
        numbers=numbers,
        by_part=spec.by_part,
        higher_is_better=spec.higher_is_better,
    )


def _relative_times(results: GridResults) -> dict[str, float]:
    """Return the seconds of a round relative to FedAvg without FLFA, by cell id.

    A run is compared with the FedAvg run that has the same seed and settings.
    """
    rounds = {
        cell.id: records for cell in results.cells if (records := results.rounds(cell))
    }
    references: dict[str, str] = {}
    for cell in results.cells:
        method = (cell.run_config["algorithm"], cell.run_config["flfa"])
        if cell.id in rounds and method == ("fedavg", "none"):
            references.setdefault(_settings_without_method(cell), cell.id)
    return {
        cell.id: relative_time(rounds[cell.id], rounds[reference])
        for cell in results.cells
        if cell.id in rounds
        and (reference := references.get(_settings_without_method(cell)))
    }


def _settings_without_method(cell: Cell) -> str:
    return settings_without(cell, FLFA_KEYS | METHOD_KEYS | {"algorithm"})


def settings_without(cell: Cell, keys: frozenset[str]) -> str:
    """Return all settings of a cell except some keys, as a text to compare."""
    settings = {k: v for k, v in cell.run_config.items() if k not in keys}
    return repr((cell.nodes, sorted(settings.items())))
