"""The published numbers, looked up by what a run is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flfa_app.config import ConfigError

__all__ = ["NOT_CONVERGED", "Published", "published", "tables"]

FILE = Path(__file__).with_name("paper_numbers.toml")
NOT_CONVERGED = "-"
ANY_RULE = "flfa"
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
