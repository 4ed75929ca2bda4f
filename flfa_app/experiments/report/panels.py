"""The figures of the report: which runs each of them shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Literal

import numpy as np

from flfa_app.experiments.analysis.paper import paper_number
from flfa_app.experiments.analysis.row_layout import RowLayout, layout_rows
from flfa_app.experiments.analysis.statistics import sample_statistics
from flfa_app.experiments.report import charts
from flfa_app.experiments.store import GridResults, GridSpec
from flfa_app.models import block_of
from flfa_app.results.records import RoundRecord
from flfa_app.results.round_metrics import (
    cosine_histogram,
    drift_reduction,
    first_cosines,
    selection_frequency,
)
from strategies.rules import skewness

Rounds = Sequence[RoundRecord]


@dataclass(frozen=True)
class Figure:
    """A chart with its caption, and the HTML attributes by which the filters find it.

    The caption also names the ``curves``, in their colours, and the scores at both
    ends of the colour map. A ``wide`` chart needs the whole width of the page.
    """

    svg: str
    attributes: dict[str, str]
    caption: str = ""
    curves: Sequence[charts.Curve] = ()
    score_range: tuple[float, float] | None = None
    wide: bool = False


class FinishedRuns:
    """The rounds of all finished runs of a grid, by row and column of its tables."""

    def __init__(self, results: GridResults) -> None:
        self.spec = results.spec
        self.rows = layout_rows(results)
        self.groups: dict[int, list[RowLayout]] = {}
        for row in self.rows:
            self.groups.setdefault(row.group, []).append(row)
        self._rounds = {
            cell.id: rounds
            for cell in results.cells
            if (rounds := results.rounds(cell))
        }

    def by_seed(self, row: RowLayout, column: str) -> dict[int, Rounds]:
        """Return the rounds of a row's finished runs, by seed."""
        cells = row.cells.get(column, [])
        return {c.seed: self._rounds[c.id] for c in cells if c.id in self._rounds}

    def have_auc(self) -> bool:
        """Tell whether the last round of any run has an AUC."""
        evaluations = [rounds[-1].evaluation for rounds in self._rounds.values()]
        return any(isfinite(x.auc) for x in evaluations if x is not None)

    def attributes(self, rows: Sequence[RowLayout], column: str) -> dict[str, str]:
        """Return the filter attributes for the axis values that all rows share."""
        common = {
            axis: value
            for axis, value in rows[0].axes.items()
            if all(row.axes[axis] == value for row in rows)
        }
        return filter_attributes(self.spec, {**common, self.spec.columns: column})


def filter_attributes(spec: GridSpec, axes: Mapping[str, str]) -> dict[str, str]:
    """Return the HTML attributes by which the page's filters find an element."""
    numbers = {axis: number for number, axis in enumerate(spec.axes)}
    return {f"data-axis-{numbers[axis]}": value for axis, value in axes.items()}


def curve_figures(
    metric: Literal["accuracy", "auc"], runs: FinishedRuns, column: str
) -> Iterator[Figure]:
    """Yield a line chart for each method, with and without FLFA; all have one scale."""
    curves_of_group: dict[int, list[charts.Curve]] = {}
    all_points: list[charts.CurvePoint] = []
    for group, rows in runs.groups.items():
        for number, row in enumerate(rows):
            series = [
                {
                    record.server_round: 100 * value
                    for record in rounds
                    if record.evaluation is not None
                    and isfinite(value := getattr(record.evaluation, metric))
                }
                for rounds in runs.by_seed(row, column).values()
            ]
            if points := _mean_with_band(series):
                attributes = filter_attributes(runs.spec, row.axes)
                style = number % charts.LINE_STYLES
                curve = charts.Curve(row.label, attributes, style, points)
                curves_of_group.setdefault(group, []).append(curve)
                all_points += points.values()
    for group, curves in curves_of_group.items():
        rows = runs.groups[group]
        title = f"{metric} by round, {rows[0].label}"
        svg = charts.line_chart(curves, title=title, unit="%", scale_points=all_points)
        yield Figure(svg, runs.attributes(rows, column), curves=curves)


def drift_figures(runs: FinishedRuns, column: str) -> Iterator[Figure]:
    """Yield a line chart for each row whose baseline is backpropagation."""
    for row in runs.rows:
        if row.baseline is None or not _is_backpropagation(row.baseline):
            continue
        flfa, bp = runs.by_seed(row, column), runs.by_seed(row.baseline, column)
        series = [drift_reduction(bp[seed], flfa[seed]) for seed in flfa if seed in bp]
        if points := _mean_with_band(series):
            svg = charts.line_chart(
                [charts.Curve(row.label, {}, 1, points)],
                title=f"drift reduction by round, {row.label}",
                unit="H",
                zero_line=True,
            )
            reductions = [value for run in series for value in run.values()]
            above = 100 * sum(value > 0 for value in reductions) / len(reductions)
            caption = f"{row.label}: above 0 in {above:.0f} % of the rounds"
            yield Figure(svg, runs.attributes([row], column), caption)


def _is_backpropagation(row: RowLayout) -> bool:
    return bool(next(iter(row.cells.values()))[0].run_config["flfa"] == "none")


def selection_figures(runs: FinishedRuns, column: str) -> Iterator[Figure]:
    """Yield a bar chart for each row with FLFA: the share of each selected block."""
    for row in runs.rows:
        if not (cells := row.cells.get(column)):
            continue
        block = partial(block_of, cells[0].run_config["model"])
        shares = [
            share
            for rounds in runs.by_seed(row, column).values()
            if (share := selection_frequency(rounds, block))
        ]
        bars = []
        for name in dict.fromkeys(name for share in shares for name in share):
            mean = 100 * sum(share.get(name, 0.0) for share in shares) / len(shares)
            paper = paper_number("selection", "selection-frequency", cells[0], name)[0]
            paper_share = paper if isinstance(paper, float) else None
            bars.append(charts.Bar(name, mean, paper_share))
        if bars:
            svg = charts.bar_chart(bars, title=f"selected blocks, {row.label}")
            yield Figure(svg, runs.attributes([row], column), row.label)


def score_figures(runs: FinishedRuns, column: str) -> Iterator[Figure]:
    """Yield a heat map for each row with FLFA: the scores of its first seed."""
    for row in runs.rows:
        for seed, rounds in list(runs.by_seed(row, column).items())[:1]:
            scores = [score for record in rounds for score in record.scores.values()]
            if any(map(isfinite, scores)) and any(r.selected for r in rounds):
                svg, score_range = _draw_score_map(rounds, row.label)
                attributes = runs.attributes([row], column)
                caption = f"{row.label}, seed {seed}; score"
                yield Figure(svg, attributes, caption, (), score_range, wide=True)


def _draw_score_map(rounds: Rounds, label: str) -> tuple[str, tuple[float, float]]:
    layers = dict.fromkeys(layer for record in rounds for layer in record.scores)
    layers |= dict.fromkeys(layer for record in rounds for layer in record.selected)
    index = {layer: i for i, layer in enumerate(layers)}
    scores = np.full((len(index), len(rounds)), np.nan)
    selected = []
    for column, record in enumerate(rounds):
        for layer, score in record.scores.items():
            scores[index[layer], column] = score
        selected += [(index[layer], column) for layer in record.selected]
    title, first = f"scores by layer and round, {label}", rounds[0].server_round
    svg = charts.heat_map(list(index), scores, selected, first_round=first, title=title)
    return svg, (float(np.nanmin(scores)), float(np.nanmax(scores)))


def cosine_figures(runs: FinishedRuns, column: str) -> Iterator[Figure]:
    """Yield a histogram for each method, of its first row that has finished runs.

    All rows of a method have the same cosines in round 1, which is without FLFA.
    """
    for group in runs.groups.values():
        for row in group:
            cosines_of_runs = [
                cosines
                for rounds in runs.by_seed(row, column).values()
                if (cosines := first_cosines(rounds))
            ]
            if cosines_of_runs:
                label = group[0].label
                pooled = [x for cosines in cosines_of_runs for x in cosines.values()]
                bins = cosine_histogram(pooled)
                svg = charts.histogram(*bins, title=f"cosines, {label}")
                skews = [skewness(cosines.values()) for cosines in cosines_of_runs]
                caption = f"{label}: skewness {sum(skews) / len(skews):+.2f}"
                yield Figure(svg, runs.attributes(group, column), caption)
                break


def _mean_with_band(
    series: Sequence[Mapping[int, float]],
) -> dict[int, charts.CurvePoint]:
    """Return mean and mean ± deviation of each round over the runs that have it."""
    points = {}
    for number in sorted({number for run in series for number in run}):
        sample = sample_statistics([run[number] for run in series if number in run])
        if sample:
            spread = sample.deviation or 0.0
            points[number] = (sample.mean, sample.mean - spread, sample.mean + spread)
    return points
