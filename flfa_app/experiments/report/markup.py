"""Parts of the report as HTML: tables, filters, settings. Everything is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from flfa_app.experiments.analysis.comparison import Table
from flfa_app.experiments.analysis.rows import display
from flfa_app.experiments.report.wording import (
    ABSENT,
    NOTHING,
    Line,
    Words,
    legend,
    lines,
)
from flfa_app.experiments.store import Grid

__all__ = ["filter_by", "filters", "pairs", "result_table"]

AXES = {"dataset": "Data set", "method": "Method", "flfa": "FLFA"}
METRICS = {"score": "accuracy", "auc": "AUC", "time": "time"}


def filter_by(grid: Grid, axes: Mapping[str, str]) -> str:
    """Return the attributes by which the filters find an element."""
    numbers = {axis: i for i, axis in enumerate(grid.axes)}
    return "".join(
        f' data-axis-{numbers[axis]}="{escape(value)}"' for axis, value in axes.items()
    )


def filters(grid: Grid, tables: Sequence[Table]) -> str:
    """Return a form with a box for each axis value; the page's script shows it."""
    parts = []
    for number, (axis, values) in enumerate(grid.axes.items()):
        if len(values) > 1:
            boxes = "".join(
                f'<label><input type="checkbox" checked data-axis="{number}" '
                f'value="{escape(value)}">{escape(display(value))}</label>'
                for value in values
            )
            name = escape(AXES.get(axis, axis))
            parts.append(f"<fieldset><legend>{name}</legend>{boxes}</fieldset>")
    keys = [table.quantity.key for table in tables]
    options = "".join(
        f'<option value="{escape(key)}">{escape(METRICS.get(key, key))}</option>'
        for key in keys
    )
    parts.append(
        '<fieldset><legend><label for="metric">Metric</label></legend>'
        f'<select id="metric"><option value="">all</option>{options}</select>'
        "</fieldset>"
    )
    parts.append('<fieldset><button type="reset">Show all</button></fieldset>')
    body = "\n".join(parts)
    return f'<form id="filters" aria-label="Filters" hidden>\n{body}\n</form>'


def result_table(grid: Grid, table: Table) -> str:
    """Return the section of one quantity."""
    heading = f"<h2>{escape(table.quantity.title)}</h2>"
    start = f'<section data-metric="{escape(table.quantity.key)}">'
    if not table.columns:
        return f"{start}{heading}<p>{NOTHING}</p></section>"
    found = lines(table)
    heads = "".join(
        f'<th scope="col"{filter_by(grid, {grid.columns: column.value})}>'
        f"{escape(column.label)}</th>"
        for column in table.columns
    )
    body = []
    for before, line in zip([None, *found], found, strict=False):
        first = before is not None and before.group != line.group
        body.append(_row(grid, table, line, "first" if first else ""))
    notes = "".join(f"<li>{escape(text)}</li>" for text in legend(table))
    return (
        f'{start}{heading}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.quantity.title)}"><table><thead><tr><td></td>{heads}'
        f"</tr></thead><tbody>\n{''.join(body)}</tbody></table></div>"
        f'<ul class="legend">{notes}</ul></section>'
    )


def _row(grid: Grid, table: Table, line: Line, kind: str) -> str:
    cells = "".join(
        f"<td{filter_by(grid, {grid.columns: column.value})}>"
        f"{_place(line.words.get(column, Words()))}</td>"
        for column in table.columns
    )
    head = f'<th scope="row">{escape(line.label)}</th>'
    attributes = filter_by(grid, line.axes)
    return f'<tr class="{line.kind} {kind}"{attributes}>{head}{cells}</tr>\n'


def _place(words: Words) -> str:
    text = escape(words.text)
    if words.bold:
        text = f"<b>{text}</b>"
    if words.text in ABSENT:
        text = f'<span class="absent">{text}</span>'
    notes = "".join(
        f' <span class="note">{escape(note)}</span>' for note in words.notes
    )
    paper = f"<small>paper {escape(words.paper)}</small>" if words.paper else ""
    return text + notes + paper


def pairs(heading: str, found: Mapping[str, str]) -> str:
    """Return a folded table of names and texts; nothing if there are none."""
    if not found:
        return ""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>\n'
        for name, text in found.items()
    )
    return (
        f"<details><summary>{escape(heading)}</summary>"
        f'<div class="scroll plain"><table><tbody>\n{body}</tbody></table></div>'
        "</details>"
    )
