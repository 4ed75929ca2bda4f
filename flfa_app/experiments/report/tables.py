"""The tables of a grid as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from typing import Any

from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.comparison import Entry, Table, compare
from flfa_app.experiments.report.wording import (
    ABSENT,
    NOTHING,
    Line,
    Words,
    legend,
    lines,
)
from flfa_app.experiments.store import Grid, Results

__all__ = ["FORMATS", "render"]

LATEX_SIGNS = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
}


def render(results: Results, format: str) -> str:
    """Return all tables of a grid in one of :data:`FORMATS`."""
    if format not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError(f"format is {format!r}; it must be one of {known}")
    return FORMATS[format](results.grid, compare(results))


def _markdown(grid: Grid, tables: list[Table]) -> str:
    blocks = [f"# {_markdown_text(grid.title)}"]
    for table in tables:
        found = lines(table)
        blocks.append(f"## {_markdown_text(table.quantity.title)}")
        if not table.columns:
            blocks.append(NOTHING)
            continue
        heads = [_markdown_text(column.label) for column in table.columns]
        rows = [["", *heads], ["---", *("---:" for _ in heads)]]
        rows += [_markdown_line(line, table) for line in found]
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        blocks.append("\n".join(f"- {_markdown_text(one)}" for one in legend(table)))
    return "\n\n".join(blocks) + "\n"


def _markdown_line(line: Line, table: Table) -> list[str]:
    label = _markdown_text(line.label)
    cells = [label if line.kind == "value" else f"*{label}*"]
    for column in table.columns:
        words = line.words.get(column, Words())
        text = f"**{words.text}**" if words.bold else words.text
        if words.text in ABSENT:
            text = f"*{text}*"
        cells.append(_joined(text, words, "paper "))
    return cells


def _joined(text: str, words: Words, before_paper: str) -> str:
    """Return a number with what stands beside it."""
    notes = [f"({note})" for note in words.notes]
    paper = [f"· {before_paper}{words.paper}"] if words.paper else []
    return " ".join([text, *notes, *paper])


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\|*_<>`\[\]#])", r"\\\1", text)


def _latex(grid: Grid, tables: list[Table]) -> str:
    blocks = [f"% {' '.join(grid.title.split())}\n% \\usepackage{{booktabs}}"]
    for table in tables:
        found = lines(table)
        caption = f"{grid.title}. {table.quantity.title}. "
        caption += " ".join(legend(table)) if table.columns else NOTHING
        heads = ["", *(column.label for column in table.columns)]
        rows = [r"\toprule", _latex_row(map(_latex_text, heads))]
        group: int | None = -1
        for line in found:
            if line.group != group:
                rows.append(r"\midrule")
                group = line.group
            rows.append(_latex_line(line, table))
        blocks.append(
            "\n".join(
                [
                    r"\begin{table*}",
                    r"\centering\small",
                    rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
                    *rows,
                    r"\bottomrule",
                    r"\end{tabular}",
                    rf"\caption{{{_latex_text(caption)}}}",
                    r"\end{table*}",
                ]
            )
        )
    return "\n\n".join(blocks) + "\n"


def _latex_line(line: Line, table: Table) -> str:
    label = _latex_text(line.label)
    cells = [label if line.kind == "value" else rf"\quad\emph{{{label}}}"]
    for column in table.columns:
        words = line.words.get(column, Words())
        text = _latex_text(words.text)
        if words.bold:
            text = rf"\textbf{{{text}}}"
        if words.text in ABSENT:
            text = rf"\emph{{{text}}}"
        notes = [_latex_text(f"({note})") for note in words.notes]
        paper = rf"{{\scriptsize paper {_latex_text(words.paper)}}}"
        cells.append(" ".join([text, *notes, *([paper] if words.paper else [])]))
    return _latex_row(cells)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_text(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    # A minus in front of a number is no hyphen.
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def _csv(grid: Grid, tables: list[Table]) -> str:
    """Return one line for each place of each table, its numbers in fields of their own.

    Numbers are not rounded: this is the format to compute with.
    """
    out = io.StringIO()
    axes = [axis for axis in grid.axes if axis != grid.columns]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["quantity", *axes, grid.columns, "part", *CSV_FIELDS])
    for table in tables:
        for row in table.rows:
            for column, entry in row.entries.items():
                where = [table.quantity.key, *(row.about.axes[axis] for axis in axes)]
                numbers = [field(entry) for field in CSV_FIELDS.values()]
                writer.writerow([*where, column.value, column.part, *numbers])
    return out.getvalue()


CSV_FIELDS: dict[str, Callable[[Entry], Any]] = {
    "mean": lambda entry: entry.estimate and entry.estimate.mean,
    "deviation": lambda entry: entry.estimate and entry.estimate.deviation,
    "seeds": lambda entry: len(entry.values),
    "seeds-asked": lambda entry: len(entry.seeds),
    "seeds-failed": lambda entry: len(entry.failed),
    "seeds-not-run": lambda entry: len(entry.missing),
    "seeds-without-number": lambda entry: len(entry.empty),
    "seeds-other-settings": lambda entry: len(entry.other),
    "difference": lambda entry: entry.difference and entry.difference.mean,
    "interval-low": lambda entry: entry.difference and entry.difference.low,
    "interval-high": lambda entry: entry.difference and entry.difference.high,
    "pairs": lambda entry: entry.difference and entry.difference.count,
    "paper": lambda entry: entry.paper,
    "paper-difference": lambda entry: entry.paper_difference,
}
FORMATS: dict[str, Callable[[Grid, list[Table]], str]] = {
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
}
