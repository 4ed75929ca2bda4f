"""A measured figure: its value, its spread, and what is asked of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.timing import machine

__all__ = [
    "Figure",
    "markdown",
    "missed",
    "of_measurements",
    "output_file",
    "publish",
    "rows_of",
]


class Figure(NamedTuple):
    """A figure of a benchmark.

    Parameters
    ----------
    name : str
        What was measured.
    value : float
        The median.
    quartiles : tuple[float, float]
        Of the measurements the median is of; of a single one, itself twice.
    goal : str (default: "")
        ``"<= 1.02"`` or ``">= 1.25"``; nothing is asked of a figure without.
    unit : str (default: "")
        Of the value; a ratio has none.
    """

    name: str
    value: float
    quartiles: tuple[float, float]
    goal: str = ""
    unit: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if there is none."""
        if not self.goal:
            return None
        sign, bound = self.goal.split()
        return (
            self.value <= float(bound) if sign == "<=" else self.value >= float(bound)
        )


def of_measurements(
    name: str, measured: Iterable[float], goal: str = "", unit: str = ""
) -> Figure:
    """Return the figure that is the median of some measurements."""
    lower, median, upper = np.percentile(list(measured), [25, 50, 75])
    return Figure(name, float(median), (float(lower), float(upper)), goal, unit)


def markdown(figures: Sequence[Figure]) -> str:
    """Return a table of figures, a line each."""
    lines = ["| figure | goal | measured | quartiles |", "|---|---|--:|--:|"]
    for figure in figures:
        unit = f" {figure.unit}" if figure.unit else ""
        lower, upper = (f"{quartile:.3g}" for quartile in figure.quartiles)
        goal = figure.goal.replace("<=", "≤").replace(">=", "≥")
        mark = "" if figure.reached is not False else " **missed**"
        goal = f"{goal}{unit}{mark}" if goal else "reported"
        spread = f"{lower} to {upper}"
        lines.append(
            f"| {figure.name} | {goal} | {figure.value:.3f}{unit} | {spread} |"
        )
    return "\n".join(lines)


def missed(figures: Iterable[Figure]) -> bool:
    """Whether a goal is not reached."""
    return any(figure.reached is False for figure in figures)


def rows_of(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Return figures as they are in a JSON file."""
    return [{**figure._asdict(), "reached": figure.reached} for figure in figures]


def output_file(text: str) -> Path:
    """Return a path that can be written to, before anything is measured."""
    file = Path(text)
    if file.is_dir() or not file.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: "
            + ("it is a folder" if file.is_dir() else f"{file.parent} is no folder")
        )
    return file


def publish(figures: Sequence[Figure], file: Path | None, **more: Any) -> int:
    """Print figures and write them to a file; return 1 if a goal is missed, else 0."""
    Console(highlight=False, soft_wrap=True).print(markdown(figures), markup=False)
    if file is not None:
        content = {"machine": machine(), "figures": rows_of(figures), **more}
        file.write_text(json.dumps(content, indent=1) + "\n")
    return int(missed(figures))
