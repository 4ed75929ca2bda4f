"""The published numbers, looked up by the settings of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flfa_app.errors import ConfigError
from flfa_app.experiments.store import Cell

NUMBERS_FILE = Path(__file__).with_name("paper_numbers.toml")
NOT_CONVERGED = "-"
# Value of `flfa` in the file that stands for every rule but "none".
ANY_RULE = "flfa"
# Quantities of a table's runs that the paper publishes in another table.
OTHER_TABLES = {("table1", "extra-accuracy"): "cifar10_1"}
# Settings that the paper states for all runs ("Experimental setup", "Additional
# Experiment Settings"), for runs with FLFA, for data sets and for single tables.
SETTINGS: dict[str, Any] = {
    "nodes": 100,
    "model": "mobilenet_v2",
    "train-fraction": 1.0,
    "partitioner": "dirichlet",
    "dirichlet-beta": 0.3,
    "fraction-train": 0.1,
    "local-epochs": 5,
    "batch-size": 64,
    "learning-rate": 0.01,
    "lr-decay": 0.998,
    "momentum": 0.9,
    "weight-decay": 0.001,
}
FLFA_SETTINGS: dict[str, Any] = {
    "num-fa-layers": 1,
    "candidates": "all",
    "feedback": "global",
    "scaling": "tensor",
}
ROUNDS, LONG_ROUNDS = 100, {"cifar10": 500, "cifar100": 500}
TABLE_SETTINGS: dict[str, dict[str, Any]] = {
    "beta01": {"dirichlet-beta": 0.1},
    "resnet50": {"model": "resnet50"},
    "clients200": {"nodes": 200},
    "epochs15": {"local-epochs": 15},
    "participation005": {"fraction-train": 0.05},
}

Published = float | str  # a number in the paper's units, or NOT_CONVERGED


def paper_tables() -> list[str]:
    """Return the keys of the paper's tables."""
    return list(_read_numbers())


def published_numbers(
    table: str, quantity: str, run_config: Mapping[str, Any]
) -> Mapping[str, Published]:
    """Return the numbers that the paper has for runs with these settings, if any.

    They are by data set for ``accuracy``, ``time`` and ``average-gain``, by test set
    for ``extra-accuracy``, by block of the model for ``selection-frequency``. Only keys
    that distinguish the lines of the table are compared. A grid that reproduces no
    table has the table "".
    """
    lines = _read_numbers().get(table)
    if lines is None and table:
        raise ConfigError(
            f"table is {table!r}; the paper's tables are {', '.join(paper_tables())}"
        )
    for line in lines or []:
        if quantity in line and _applies_to(line["when"], run_config):
            return dict(line[quantity])
    return {}


class PaperNumber(NamedTuple):
    """The published number for a run; None if settings differ, and which they are."""

    number: Published | None
    differing_keys: tuple[str, ...] = ()


def paper_number(table: str, quantity: str, cell: Cell, part: str = "") -> PaperNumber:
    """Return the published number for a run's data set, or for a part of a run."""
    table = OTHER_TABLES.get((table, quantity), table)
    numbers = published_numbers(table, quantity, cell.run_config)
    number = numbers.get(part or str(cell.run_config["dataset"]))
    if number is None:
        return PaperNumber(None)
    keys = differing_keys(table, cell)
    return PaperNumber(None if keys else number, tuple(keys))


def differing_keys(table: str, cell: Cell) -> list[str]:
    """Return the keys in which a run differs from the runs of a table of the paper.

    Keys that distinguish the lines of the table do not count, because
    :func:`published_numbers` compares them. Nor do keys that the paper does not state.
    """
    line_keys = {key for line in _read_numbers().get(table, []) for key in line["when"]}
    keys = cell.run_config
    paper_settings = {
        **SETTINGS,
        "num-server-rounds": LONG_ROUNDS.get(keys["dataset"], ROUNDS),
        **(FLFA_SETTINGS if keys["flfa"] != "none" else {}),
        **TABLE_SETTINGS.get(table, {}),
    }
    settings = {"nodes": cell.nodes, **keys}
    return [
        key
        for key, value in paper_settings.items()
        if key not in line_keys and settings.get(key) != value
    ]


def _applies_to(when: Mapping[str, Any], run_config: Mapping[str, Any]) -> bool:
    return all(
        run_config[key] == value
        or ((key, value) == ("flfa", ANY_RULE) and run_config[key] != "none")
        for key, value in when.items()
    )


@cache
def _read_numbers() -> dict[str, list[dict[str, Any]]]:
    with NUMBERS_FILE.open("rb") as file:
        return tomllib.load(file)
