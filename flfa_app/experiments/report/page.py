"""The report of a grid: one HTML file that loads nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flfa_app.experiments.analysis.comparison import compare_runs
from flfa_app.experiments.analysis.row_layout import display_name
from flfa_app.experiments.report import panels
from flfa_app.experiments.report.panels import Figure, FinishedRuns, filter_attributes
from flfa_app.experiments.report.table_text import (
    ABSENT_TEXTS,
    EMPTY_TABLE,
    EntryText,
    legend_texts,
    text_rows,
)
from flfa_app.experiments.store import GridResults, GridSpec

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
AXIS_NAMES = {"dataset": "Data set", "method": "Method", "flfa": "FLFA"}
FIGURES: dict[str, Callable[[FinishedRuns, str], Iterator[Figure]]] = {
    "accuracy": partial(panels.curve_figures, "accuracy"),
    "auc": partial(panels.curve_figures, "auc"),
    "drift": panels.drift_figures,
    "selection": panels.selection_figures,
    "scores": panels.score_figures,
    "cosines": panels.cosine_figures,
}
# The name, the attributes and the figures of one value of the column axis.
FigurePanel = tuple[str, dict[str, str], list[Figure]]


def render_report(results: GridResults, today: date) -> str:
    """Return the report as HTML."""
    spec = results.spec
    tables = compare_runs(results)
    runs = FinishedRuns(results)
    return TEMPLATES.get_template("report.html").render(
        title=spec.title,
        summary=_summarize_runs(results, today),
        axis_filters=_axis_filters(spec),
        metrics={table.quantity.key: table.quantity.label for table in tables},
        failures=_failures(results),
        other_settings=_other_settings(results),
        tables=[(table, text_rows(table), legend_texts(table)) for table in tables],
        has_auc=runs.have_auc(),
        panels={name: _figure_panels(runs, of) for name, of in FIGURES.items()},
        common_settings=_common_settings(results),
        # What the templates need to turn a table into HTML.
        ABSENT_TEXTS=ABSENT_TEXTS,
        EMPTY_TABLE=EMPTY_TABLE,
        NO_ENTRY=EntryText(),
        row_attributes=partial(filter_attributes, spec),
        column_attributes=lambda column: filter_attributes(
            spec, {spec.columns: column.value}
        ),
    )


def _summarize_runs(results: GridResults, today: date) -> list[str]:
    """Return the state of the grid, and the code and versions of its runs."""
    states = Counter(results.status(cell) for cell in results.cells)
    configs = [config for cell in results.cells if (config := results.config(cell))]
    versions = Counter(
        ", ".join(f"{name} {number}" for name, number in config["versions"].items())
        for config in configs
    )
    commits = Counter(_shorten_commit(config["git-commit"]) for config in configs)
    return [
        f"{today.isoformat()} · {len(results.cells)} runs: {states['finished']} "
        f"finished, {states['failed']} failed, {states['missing']} not run",
        *(f"Code: commit {_with_count(commit, commits)}" for commit in commits),
        *(f"Made with {_with_count(text, versions)}" for text in versions),
    ]


def _shorten_commit(commit: str | None) -> str:
    """Return twelve digits of a commit, and the mark of uncommitted changes."""
    if commit is None:
        return "not known"
    digits, dash, changes = commit.partition("-")
    return digits[:12] + dash + changes


def _with_count(text: str, counts: Counter[str]) -> str:
    return text if len(counts) == 1 else f"{text} ({counts[text]} runs)"


def _axis_filters(spec: GridSpec) -> list[tuple[int, str, dict[str, str]]]:
    """Return the number and name of each axis, and its values with their names."""
    return [
        (number, AXIS_NAMES.get(axis, axis), {x: display_name(x) for x in values})
        for number, (axis, values) in enumerate(spec.axes.items())
        if len(values) > 1
    ]


def _failures(results: GridResults) -> dict[str, str]:
    reasons = {cell.id: results.failure_reason(cell) for cell in results.cells}
    return {cell: reason for cell, reason in reasons.items() if reason is not None}


def _other_settings(results: GridResults) -> dict[str, str]:
    return {
        cell.id: "; ".join(differences)
        for cell in results.cells
        if results.status(cell) == "finished"
        and (differences := results.setting_differences(cell))
    }


def _common_settings(results: GridResults) -> dict[str, str]:
    """Return the settings that all runs have in common."""
    configs = [{"nodes": cell.nodes, **cell.run_config} for cell in results.cells]
    return {
        key: str(value)
        for key, value in (configs[0] if configs else {}).items()
        if all(config.get(key) == value for config in configs)
    }


def _figure_panels(
    runs: FinishedRuns, figures_of: Callable[[FinishedRuns, str], Iterator[Figure]]
) -> list[FigurePanel]:
    spec = runs.spec
    return [
        (display_name(value), filter_attributes(spec, {spec.columns: value}), figures)
        for value in spec.axes[spec.columns]
        if (figures := list(figures_of(runs, value)))
    ]
