"""The figures of the report: which runs go into which picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from math import isfinite, nan
from typing import Any, Literal

import numpy as np

from flfa_app.experiments.analysis.paper import other_settings, published
from flfa_app.experiments.analysis.rows import RowCells, rows
from flfa_app.experiments.analysis.statistics import estimate
from flfa_app.experiments.report import charts
from flfa_app.experiments.report.markup import filter_by
from flfa_app.experiments.store import Grid, Results
from flfa_app.results.metrics import (
    block_of,
    cosine_histogram,
    drift_reduction,
    first_cosines,
    selection_frequency,
)
from flfa_app.results.records import RoundRecord
from strategies.rules import skewness

__all__ = ["Runs", "cosines", "curves", "drift", "scores", "selection"]

Rounds = Sequence[RoundRecord]
Figures = Iterator[str]


class Runs:
    """The rounds of all finished runs of a grid, and its rows."""

    def __init__(self, results: Results) -> None:
        self.grid = results.grid
        self.groups: dict[int, list[RowCells]] = {}
        for row in rows(results):
            self.groups.setdefault(row.group, []).append(row)
        finished = ((cell.id, results.rounds(cell)) for cell in results.cells)
        self._rounds = {cell_id: rounds for cell_id, rounds in finished if rounds}

    def of(self, row: RowCells, column: str) -> dict[int, Rounds]:
        """Return the rounds of a row's finished runs by seed."""
        cells = row.cells.get(column, [])
        return {c.seed: self._rounds[c.id] for c in cells if c.id in self._rounds}

    def have_auc(self) -> bool:
        """Tell whether any run has measured the AUC."""
        last = [rounds[-1].evaluation for rounds in self._rounds.values()]
        return any(isfinite(evaluation.auc) for evaluation in last if evaluation)


def curves(key: Literal["accuracy", "auc"], runs: Runs, column: str) -> Figures:
    """Yield a picture for each method: it, and it with FLFA; all with one scale."""
    pictures = []
    for group in runs.groups.values():
        lines = []
        for style, row in enumerate(group):
            series = [
                {r.server_round: 100 * value for r, value in _measured(rounds, key)}
                for rounds in runs.of(row, column).values()
            ]
            attributes = filter_by(runs.grid, row.axes)
            if points := _band(series):
                lines.append(charts.Line(row.label, attributes, style, points))
        if lines:
            pictures.append((group, lines))
    every = [p for _, lines in pictures for one in lines for p in one.points.values()]
    for group, lines in pictures:
        title = f"{key} by round, {group[0].label}"
        picture = charts.line_chart(lines, title=title, unit="%", also=every)
        legend = "".join(
            f'<span class="key s{line.style % charts.STYLES}"{line.attributes}>'
            f"{escape(line.name)}</span>"
            for line in lines
        )
        yield _figure(runs.grid, group, column, legend, picture)


def _measured(
    rounds: Rounds, key: Literal["accuracy", "auc"]
) -> Iterator[tuple[RoundRecord, float]]:
    for record in rounds:
        value = nan if record.evaluation is None else getattr(record.evaluation, key)
        if isfinite(value):
            yield record, value


def drift(runs: Runs, column: str) -> Figures:
    """Yield a picture for each row that is compared with backpropagation."""
    for row, base in _with_bp(runs):
        ours, bp = runs.of(row, column), runs.of(base, column)
        series = [drift_reduction(bp[seed], ours[seed]) for seed in ours if seed in bp]
        if points := _band(series):
            line = charts.Line(row.label, "", 1, points)
            title = f"drift reduction by round, {row.label}"
            picture = charts.line_chart([line], title=title, unit="H", zero=True)
            every = [value for one in series for value in one.values()]
            above = 100 * sum(value > 0 for value in every) / len(every)
            text = f"{escape(row.label)}: above 0 in {above:.0f} % of the rounds"
            yield _figure(runs.grid, [row], column, text, picture)


def selection(runs: Runs, column: str) -> Figures:
    """Yield a picture for each row with FLFA: which blocks were selected."""
    for row in _all_rows(runs):
        found = runs.of(row, column)
        if not found:
            continue
        cell = row.cells[column][0]
        config = cell.run_config
        block = partial(block_of, config["model"])
        shares = [selection_frequency(rounds, block) for rounds in found.values()]
        shares = [share for share in shares if share]
        if not shares:
            continue
        paper: Mapping[str, Any] = {}
        if not other_settings("selection", cell):
            paper = published("selection", "selection-frequency", config)
        bars = [
            charts.Bar(
                name,
                100 * sum(share.get(name, 0.0) for share in shares) / len(shares),
                paper.get(name),
            )
            for name in dict.fromkeys(name for share in shares for name in share)
        ]
        picture = charts.bars(bars, title=f"selected blocks, {row.label}")
        yield _figure(runs.grid, [row], column, escape(row.label), picture)


def scores(runs: Runs, column: str) -> Figures:
    """Yield a map for each row with FLFA: the scores of its first finished seed."""
    for row in _all_rows(runs):
        for seed, rounds in list(runs.of(row, column).items())[:1]:
            known = [score for record in rounds for score in record.scores.values()]
            if any(r.selected for r in rounds) and any(map(isfinite, known)):
                text = f"{escape(row.label)}, seed {seed}; score"
                picture, low, high = _score_map(rounds, row.label)
                text += f' <span class="ramp">{low:.2f}<i></i>{high:.2f}</span>'
                yield _figure(runs.grid, [row], column, text, picture, kind="wide")


def _score_map(rounds: Rounds, label: str) -> tuple[str, float, float]:
    layers = dict.fromkeys(layer for record in rounds for layer in record.scores)
    layers |= dict.fromkeys(layer for record in rounds for layer in record.selected)
    index = {layer: i for i, layer in enumerate(layers)}
    values = np.full((len(index), len(rounds)), np.nan)
    marks = []
    for at, record in enumerate(rounds):
        for layer, score in record.scores.items():
            values[index[layer], at] = score
        marks += [(index[layer], at) for layer in record.selected]
    title = f"scores by layer and round, {label}"
    picture = charts.heat_map(
        list(index), values, marks, first_round=rounds[0].server_round, title=title
    )
    return picture, float(np.nanmin(values)), float(np.nanmax(values))


def cosines(runs: Runs, column: str) -> Figures:
    """Yield a picture for each method: in round 1 there is no FLFA yet."""
    for group in runs.groups.values():
        for row in group:
            first = [first_cosines(rounds) for rounds in runs.of(row, column).values()]
            first = [one for one in first if one]
            if first:
                skews = [skewness(one.values()) for one in first]
                pooled = [cosine for one in first for cosine in one.values()]
                picture = charts.histogram(
                    *cosine_histogram(pooled), title=f"cosines, {group[0].label}"
                )
                mean = sum(skews) / len(skews)
                text = f"{escape(group[0].label)}: skewness {mean:+.2f}"
                yield _figure(runs.grid, group, column, text, picture)
                break


def _all_rows(runs: Runs) -> Iterator[RowCells]:
    for group in runs.groups.values():
        yield from group


def _with_bp(runs: Runs) -> Iterator[tuple[RowCells, RowCells]]:
    """Yield each row with the row without FLFA it is compared with."""
    for row in _all_rows(runs):
        if row.base:
            base = next(iter(row.base.cells.values()))[0]
            if base.run_config["flfa"] == "none":
                yield row, row.base


def _band(series: Sequence[Mapping[int, float]]) -> dict[int, charts.Point]:
    """Return mean and mean ± deviation of each round over the runs that have it."""
    band = {}
    for i in sorted({i for one in series for i in one}):
        found = estimate([one[i] for one in series if i in one])
        if found:
            spread = found.deviation or 0.0
            band[i] = (found.mean, found.mean - spread, found.mean + spread)
    return band


def _figure(
    grid: Grid,
    group: Sequence[RowCells],
    column: str,
    caption: str,
    picture: str,
    *,
    kind: str = "",
) -> str:
    """Return a figure that the filters hide by what all its rows have in common."""
    common = {
        axis: value
        for axis, value in group[0].axes.items()
        if all(row.axes[axis] == value for row in group)
    }
    attributes = filter_by(grid, {**common, grid.columns: column})
    return (
        f'<figure class="{kind}"{attributes}>'
        f"<figcaption>{caption}</figcaption>{picture}</figure>"
    )
