"""The tables of a grid as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any, Literal

from flfa_app.experiments.analysis.comparison import (
    ComparisonTable,
    TableEntry,
    compare_runs,
)
from flfa_app.experiments.report.table_text import (
    ABSENT_TEXTS,
    EMPTY_TABLE,
    EntryText,
    TextRow,
    legend_texts,
    text_rows,
)
from flfa_app.experiments.store import GridResults, GridSpec

TableFormat = Literal["markdown", "csv", "latex"]
# Patterns for bold numbers, for texts in place of a number, for published numbers.
MARKDOWN_PATTERNS = ("**%s**", "*%s*", "· paper %s")
LATEX_PATTERNS = (r"\textbf{%s}", r"\emph{%s}", r"{\scriptsize paper %s}")
LATEX_SIGNS = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
}


def render_tables(results: GridResults, format: TableFormat) -> str:
    """Return all tables of a grid."""
    return FORMATS[format](results.spec, compare_runs(results))


def _markdown(spec: GridSpec, tables: list[ComparisonTable]) -> str:
    blocks = [f"# {_escape_markdown(spec.title)}"]
    for table in tables:
        blocks.append(f"## {_escape_markdown(table.quantity.title)}")
        if not table.columns:
            blocks.append(EMPTY_TABLE)
            continue
        heads = [_escape_markdown(column.label) for column in table.columns]
        rows = [["", *heads], ["---", *("---:" for _ in heads)]]
        for row in text_rows(table):
            label = _escape_markdown(row.label)
            entries = _format_entries(row, table, *MARKDOWN_PATTERNS)
            rows.append([label if row.kind == "value" else f"*{label}*", *entries])
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        legend = legend_texts(table)
        blocks.append("\n".join(f"- {_escape_markdown(text)}" for text in legend))
    return "\n\n".join(blocks) + "\n"


def _format_entries(
    row: TextRow,
    table: ComparisonTable,
    bold: str,
    absent: str,
    paper: str,
    escape: Callable[[str], str] = str,
) -> list[str]:
    """Return the text of each column."""
    texts = []
    for column in table.columns:
        entry = row.entries.get(column, EntryText())
        text = escape(entry.text)
        if entry.bold:
            text = bold % text
        if entry.text in ABSENT_TEXTS:
            text = absent % text
        parts = [text, *(escape(f"({note})") for note in entry.notes)]
        if entry.paper:
            parts.append(paper % escape(entry.paper))
        texts.append(" ".join(parts))
    return texts


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_<>`\[\]#])", r"\\\1", text)


def _latex(spec: GridSpec, tables: list[ComparisonTable]) -> str:
    title = " ".join(spec.title.split())
    blocks = [f"% {title}\n% \\usepackage{{booktabs}}"]
    return "\n\n".join([*blocks, *(_latex_table(spec, t) for t in tables)]) + "\n"


def _latex_table(spec: GridSpec, table: ComparisonTable) -> str:
    legend = " ".join(legend_texts(table)) if table.columns else EMPTY_TABLE
    caption = f"{spec.title}. {table.quantity.title}. {legend}"
    heads = [_escape_latex(column.label) for column in table.columns]
    lines = [
        r"\begin{table*}",
        r"\centering\small",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
    ]
    group: int | None = None
    for row in text_rows(table):
        if row.group != group:
            lines.append(r"\midrule")
            group = row.group
        label = _escape_latex(row.label)
        label = label if row.kind == "value" else rf"\quad\emph{{{label}}}"
        entries = _format_entries(row, table, *LATEX_PATTERNS, _escape_latex)
        lines.append(" & ".join([label, *entries]) + r" \\")
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_escape_latex(caption)}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _escape_latex(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    # The minus of a number is longer than a hyphen.
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def _csv(spec: GridSpec, tables: list[ComparisonTable]) -> str:
    """Return one line for each entry of each table, with unrounded numbers."""
    output = io.StringIO()
    axes = [axis for axis in spec.axes if axis != spec.columns]
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["quantity", *axes, spec.columns, "part", *CSV_FIELDS])
    for table in tables:
        for row in table.rows:
            values = [row.layout.axes[axis] for axis in axes]
            for column, entry in row.entries.items():
                numbers = [field(entry) for field in CSV_FIELDS.values()]
                writer.writerow(
                    [table.quantity.key, *values, column.value, column.part, *numbers]
                )
    return output.getvalue()


CSV_FIELDS: dict[str, Callable[[TableEntry], Any]] = {
    "mean": lambda entry: entry.statistics and entry.statistics.mean,
    "deviation": lambda entry: entry.statistics and entry.statistics.deviation,
    "seeds": lambda entry: len(entry.values),
    "seeds-asked": lambda entry: entry.seeds,
    "seeds-failed": lambda entry: entry.failed,
    "seeds-not-run": lambda entry: entry.missing,
    "seeds-without-number": lambda entry: entry.without_number,
    "seeds-other-settings": lambda entry: entry.other_settings,
    "difference": lambda entry: entry.difference and entry.difference.mean,
    "interval-low": lambda entry: entry.difference and entry.difference.low,
    "interval-high": lambda entry: entry.difference and entry.difference.high,
    "pairs": lambda entry: entry.difference and entry.difference.count,
    "paper": lambda entry: entry.paper,
    "paper-difference": lambda entry: entry.paper_difference,
}
FORMATS: dict[TableFormat, Callable[[GridSpec, list[ComparisonTable]], str]] = {
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
}
