"""The text of a results table: its rows, entries and legend, in no format yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flfa_app.experiments.analysis.comparison import (
    DECIMALS,
    AverageGain,
    ComparisonTable,
    TableColumn,
    TableEntry,
)
from flfa_app.experiments.analysis.paper import NOT_CONVERGED, Published

NOT_RUN, FAILED, NO_NUMBER = "not run", "failed", "no number"
NO_PAIR, ONE_PAIR = "no pair", "1 pair"
ABSENT_TEXTS = frozenset({NOT_RUN, FAILED, NO_NUMBER})
OTHER_SETTINGS = "†"
EMPTY_TABLE = "No finished run has these numbers."
# What may occur in a table, and its explanation.
LEGEND = {
    "±": "±: standard deviation over the seeds.",
    "bold": "Bold: the best of a method.",
    "difference": "Difference: of runs with the same seed, in the units of the table.",
    "[": "[ , ]: 95 % confidence interval of the difference (Student's t).",
    ONE_PAIR: f"{ONE_PAIR}: one seed alone has no confidence interval.",
    NO_PAIR: f"{NO_PAIR}: no seed is finished on both sides.",
    "paper": "paper: the published number.",
    "not converged": f"paper {NOT_CONVERGED}: it did not converge there.",
    "differing keys": "No published number stands beside runs with other settings than "
    "the paper's: {keys}.",
    NOT_RUN: f"{NOT_RUN}: no seed is finished yet.",
    FAILED: f"{FAILED}: the last attempt failed, no seed is finished.",
    NO_NUMBER: f"{NO_NUMBER}: finished, but summary.json has no such number.",
    "seeds": "k of n seeds: the others are not run, failed or have no number.",
    OTHER_SETTINGS: "† a run had other settings than the grid asks for.",
}


@dataclass(frozen=True)
class EntryText:
    """The text of one entry: the number, or why there is none.

    ``text`` is "" where the grid has no run, ``paper`` is "" without a published
    number.
    """

    text: str = ""
    bold: bool = False
    notes: tuple[str, ...] = ()
    paper: str = ""


@dataclass(frozen=True)
class TextRow:
    """One row of text. ``group`` is None for averages, which belong to no group."""

    kind: Literal["value", "difference", "average"]
    label: str
    axes: dict[str, str]
    group: int | None
    entries: dict[TableColumn, EntryText]


def text_rows(table: ComparisonTable) -> list[TextRow]:
    """Return the rows of a table, each followed by its differences; averages last."""
    rows: list[TextRow] = []
    for row in table.rows:
        axes, group, baseline = row.layout.axes, row.layout.group, row.layout.baseline
        values = {column: _value(entry) for column, entry in row.entries.items()}
        rows.append(TextRow("value", row.layout.label, axes, group, values))
        if baseline and table.quantity.higher_is_better:
            label = f"difference to {baseline.label}"
            differences = {c: _difference(entry) for c, entry in row.entries.items()}
            rows.append(TextRow("difference", label, axes, group, differences))
    for average in table.averages:
        label = f"average gain of {average.label.removeprefix('+ ')}"
        gains = {column: _gain(gain) for column, gain in average.gains.items()}
        rows.append(TextRow("average", label, average.axes, None, gains))
    return rows


def _value(entry: TableEntry) -> EntryText:
    notes = [OTHER_SETTINGS] if entry.other_settings else []
    if entry.statistics and len(entry.values) < entry.seeds:
        note = f"{len(entry.values)} of {entry.seeds} seeds"
        notes.append(note + (f", {entry.failed} failed" if entry.failed else ""))
    return EntryText(_mean(entry), entry.is_best, tuple(notes), _number(entry.paper))


def _mean(entry: TableEntry) -> str:
    statistics = entry.statistics
    if statistics is None:
        if entry.failed:
            return FAILED
        return NOT_RUN if entry.missing else NO_NUMBER
    if statistics.deviation is None:
        return _number(statistics.mean)
    return f"{_number(statistics.mean)} ± {_number(statistics.deviation)}"


def _difference(entry: TableEntry) -> EntryText:
    difference = entry.difference
    paper = "" if entry.paper_difference is None else _signed(entry.paper_difference)
    if difference is None:
        return EntryText(text=NO_PAIR, paper=paper)
    text = _signed(difference.mean)
    marked = entry.other_settings or entry.baseline_other_settings
    notes = [OTHER_SETTINGS] if marked else []
    if difference.low is None or difference.high is None:
        notes.append(ONE_PAIR)
    else:
        text += f" [{_signed(difference.low)}, {_signed(difference.high)}]"
        if difference.count < entry.seeds:
            notes.append(f"{difference.count} of {entry.seeds} pairs")
    return EntryText(text, notes=tuple(notes), paper=paper)


def _gain(gain: AverageGain) -> EntryText:
    incomplete = 0 < gain.count < gain.methods
    return EntryText(
        text=NO_PAIR if gain.mean is None else _signed(gain.mean),
        notes=(f"{gain.count} of {gain.methods} methods",) if incomplete else (),
        paper=_signed(gain.paper) if isinstance(gain.paper, float) else "",
    )


def _signed(number: float) -> str:
    # With a hyphen: programs that copy the number cannot read a typographic minus.
    return f"{number:+.{DECIMALS}f}"


def _number(number: Published | None) -> str:
    if isinstance(number, float):
        return f"{number:.{DECIMALS}f}"
    return number or ""


def legend_texts(table: ComparisonTable) -> list[str]:
    """Return explanations of the marks and texts that occur in a table."""
    rows = text_rows(table)
    entries = [entry for row in rows for entry in row.entries.values()]
    keys = dict.fromkeys(
        key
        for row in table.rows
        for entry in row.entries.values()
        for key in entry.paper_differing_keys
    )
    texts = {text for entry in entries for text in (entry.text, *entry.notes)}
    occurs = {
        **dict.fromkeys([*texts, *(row.kind for row in rows)], True),
        **{part: any(part in text for text in texts) for part in ("±", "[", "seeds")},
        "bold": any(entry.bold for entry in entries),
        "paper": any(entry.paper for entry in entries),
        "not converged": any(entry.paper == NOT_CONVERGED for entry in entries),
        "differing keys": bool(keys),
    }
    legend = [text for mark, text in LEGEND.items() if occurs.get(mark)]
    notes = [table.quantity.note] if table.quantity.note else []
    return notes + [text.format(keys=", ".join(keys)) for text in legend]
