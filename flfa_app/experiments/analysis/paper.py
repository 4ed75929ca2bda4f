"""The published numbers, looked up by what a run is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flfa_app.errors import ConfigError
from flfa_app.experiments.store import Cell

__all__ = [
    "NOT_CONVERGED",
    "Beside",
    "Published",
    "beside",
    "other_settings",
    "published",
    "tables",
]

FILE = Path(__file__).with_name("paper_numbers.toml")
NOT_CONVERGED = "-"
ANY_RULE = "flfa"
# Numbers that the paper gives in another table, of the same runs.
FURTHER_TABLES = {("table1", "extra-accuracy"): "cifar10_1"}
# What the paper says of all its runs ("Experimental setup", "Additional Experiment
# Settings"), of their rounds by data set, and of the runs of single tables.
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
OF_TABLE: dict[str, dict[str, Any]] = {
    "beta01": {"dirichlet-beta": 0.1},
    "resnet50": {"model": "resnet50"},
    "clients200": {"nodes": 200},
    "epochs15": {"local-epochs": 15},
    "participation005": {"fraction-train": 0.05},
}
# A number in the paper's units, or its mark for runs that did not converge.
Published = float | str


def tables() -> list[str]:
    """Return the keys of the paper's tables."""
    return list(_read())


def published(
    table: str, quantity: str, run_config: Mapping[str, Any]
) -> Mapping[str, Published]:
    """Return what the paper says about runs with these settings.

    Parameters
    ----------
    table : str
        Key of a table; "" for a grid that is none of the paper's.
    quantity : str
        ``accuracy``, ``time``, ``average-gain`` (by data set), ``extra-accuracy`` (by
        extra test set) or ``selection-frequency`` (by block of the model).
    run_config : Mapping[str, Any]
        Settings; only the keys by which the table tells its lines apart count.

    Returns
    -------
    Mapping[str, float | str]
        Numbers by data set, test set or block; empty if the paper has none.
    """
    if not table:
        return {}
    if table not in _read():
        raise ConfigError(
            f"table is {table!r}; the paper's tables are {', '.join(tables())}"
        )
    for line in _read()[table]:
        if quantity in line and _is_about(line["when"], run_config):
            return dict(line[quantity])
    return {}


class Beside(NamedTuple):
    """The published number beside a run, or in which keys its runs were others."""

    number: Published | None
    unlike: tuple[str, ...] = ()


def beside(table: str, quantity: str, cell: Cell, part: str = "") -> Beside:
    """Return the number that the paper has for a run's data set, or a part of it."""
    table = FURTHER_TABLES.get((table, quantity), table)
    numbers = published(table, quantity, cell.run_config)
    number = numbers.get(part or str(cell.run_config["dataset"]))
    if number is None:
        return Beside(None)
    unlike = other_settings(table, cell)
    return Beside(None if unlike else number, tuple(unlike))


def other_settings(table: str, cell: Cell) -> list[str]:
    """Return the keys in which a run is no run of a table of the paper.

    Keys by which the table tells its lines apart are none: :func:`published` has no
    number for a run of no line. Nor are those that the paper leaves open.
    """
    told_apart = {key for line in _read().get(table, []) for key in line["when"]}
    keys = cell.run_config
    paper = {
        **SETTINGS,
        "num-server-rounds": LONG_ROUNDS.get(keys["dataset"], ROUNDS),
        **(FLFA_SETTINGS if keys["flfa"] != "none" else {}),
        **OF_TABLE.get(table, {}),
    }
    has = {"nodes": cell.nodes, **keys}
    return [
        key for key in paper if key not in told_apart and has.get(key) != paper[key]
    ]


def _is_about(when: Mapping[str, Any], run_config: Mapping[str, Any]) -> bool:
    return all(
        run_config[key] != "none"
        if key == "flfa" and value == ANY_RULE
        else run_config[key] == value
        for key, value in when.items()
    )


@cache
def _read() -> dict[str, list[dict[str, Any]]]:
    with FILE.open("rb") as file:
        return tomllib.load(file)
