"""The report of a grid: one HTML file that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from html import escape
from pathlib import Path
from string import Template

from flfa_app.experiments.analysis.comparison import compare
from flfa_app.experiments.analysis.rows import display
from flfa_app.experiments.report import panels
from flfa_app.experiments.report.markup import filter_by, filters, pairs, result_table
from flfa_app.experiments.report.panels import Runs
from flfa_app.experiments.store import Results, Status, differences

__all__ = ["report", "write_report"]

STATES: dict[Status, str] = {
    "finished": "finished",
    "failed": "failed",
    "missing": "not run",
}
TEMPLATE = Path(__file__).with_name("report.html")
CURVES = "In %, mean over the seeds; the band is one standard deviation to both sides."
DRIFT = (
    "H of backpropagation minus H of FLFA with the same seed, mean and standard "
    "deviation over the seeds. Above 0 FLFA's clients drift apart less."
)
SELECTION = (
    "Share of all selected layers in %, mean over the seeds; the thin bar beneath is "
    "the paper's, where it has one and the run has its settings."
)
SCORES = (
    "Agreement of the clients' updates, layers in the order of the model. White boxes: "
    "the layers trained with feedback alignment in that round. Grey: no score."
)
COSINES = (
    "How many layers have which score in round 1, all seeds together. Skewness above "
    "0: most layers are at the low end, where the paper selects the lowest."
)


def write_report(results: Results, path: Path) -> None:
    """Write the report of a results folder; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(results, date.today()), encoding="utf-8")


def report(results: Results, today: date) -> str:
    """Return the report as HTML."""
    tables = compare(results)
    return Template(TEMPLATE.read_text("utf-8")).substitute(
        title=escape(results.grid.title),
        about="<br>".join(map(escape, _about(results, today))),
        filters=filters(results.grid, tables),
        problems=_problems(results),
        tables="\n".join(result_table(results.grid, table) for table in tables),
        sections="\n".join(_sections(Runs(results))),
        settings=_settings(results),
    )


def _about(results: Results, today: date) -> list[str]:
    """Return how far the grid is, and what its runs were made with."""
    states = Counter(results.status(cell) for cell in results.cells)
    counts = [f"{states[state]} {word}" for state, word in STATES.items()]
    configs = [
        config for cell in results.cells if (config := results.config(cell)) is not None
    ]
    made = Counter(
        ", ".join(f"{name} {number}" for name, number in config["versions"].items())
        for config in configs
    )
    commits = Counter(_short(config["git-commit"]) for config in configs)
    return [
        f"{today.isoformat()} · {len(results.cells)} runs: {', '.join(counts)}",
        *(f"Code: commit {_with_count(commit, commits)}" for commit in commits),
        *(f"Made with {_with_count(versions, made)}" for versions in made),
    ]


def _short(commit: str | None) -> str:
    """Return as much of a commit as people need, and whether it had changes."""
    if commit is None:
        return "not known"
    number, dash, changes = commit.partition("-")
    return number[:12] + dash + changes


def _with_count(text: str, counts: Counter[str]) -> str:
    return text if len(counts) == 1 else f"{text} ({counts[text]} runs)"


def _problems(results: Results) -> str:
    failed = {
        cell.id: reason
        for cell in results.cells
        if (reason := results.failure(cell)) is not None
    }
    other = {
        cell.id: "; ".join(found)
        for cell in results.cells
        if results.status(cell) == "finished"
        and (found := differences(results.directory(cell), cell))
    }
    return pairs("Runs that have failed", failed) + pairs(
        "Runs with other settings than the grid asks for (marked †)", other
    )


def _settings(results: Results) -> str:
    """Return the settings that all runs have in common."""
    configs = [{"nodes": cell.nodes, **cell.run_config} for cell in results.cells]
    common = {
        key: str(value)
        for key, value in (configs[0] if configs else {}).items()
        if all(config.get(key) == value for config in configs)
    }
    return pairs("Settings of all runs", common)


def _sections(runs: Runs) -> Iterator[str]:
    accuracy = partial(panels.curves, "accuracy")
    yield _section(runs, "Accuracy by round", CURVES, accuracy, metric="score")
    if runs.have_auc():
        auc = partial(panels.curves, "auc")
        yield _section(runs, "Macro-AUC by round", CURVES, auc, metric="auc")
    yield _section(runs, "Drift reduction by round", DRIFT, panels.drift)
    yield _section(runs, "Selected layers by block", SELECTION, panels.selection)
    yield _section(runs, "Scores of the layers", SCORES, panels.scores)
    yield _section(runs, "Scores in round 1", COSINES, panels.cosines)


def _section(
    runs: Runs,
    heading: str,
    text: str,
    draw: Callable[[Runs, str], Iterator[str]],
    *,
    metric: str = "",
) -> str:
    """Return a section with figures, folded by value of the column axis."""
    grid = runs.grid
    parts: list[str] = []
    for column in grid.axes[grid.columns]:
        if figures := list(draw(runs, column)):
            attributes = filter_by(grid, {grid.columns: column})
            if not parts:
                attributes += " open"
            parts.append(
                f"<details{attributes}>"
                f"<summary>{escape(display(column))}</summary>"
                f'<div class="panels">{"".join(figures)}</div></details>'
            )
    if not parts:
        parts.append("<p>No finished run has what this needs.</p>")
    attribute = f' data-metric="{metric}"' if metric else ""
    return (
        f"<section{attribute}><h2>{escape(heading)}</h2>"
        f'<p class="soft">{escape(text)}</p>{"".join(parts)}</section>'
    )
