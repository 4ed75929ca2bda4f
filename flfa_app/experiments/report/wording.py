"""The words of a table: what each of its places says, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flfa_app.experiments.analysis.comparison import (
    DECIMALS,
    Column,
    Entry,
    Gain,
    Table,
)
from flfa_app.experiments.analysis.paper import NOT_CONVERGED, Published

__all__ = ["ABSENT", "NOTHING", "Line", "Words", "legend", "lines"]

NOT_RUN, FAILED, NO_NUMBER = "not run", "failed", "no number"
NO_PAIR, ONE_PAIR = "no pair", "1 pair"
ABSENT = frozenset({NOT_RUN, FAILED, NO_NUMBER})
OTHER_SETTINGS = "†"
NOTHING = "No finished run has these numbers."


@dataclass(frozen=True)
class Words:
    """One place of a table: a number or why there is none, notes, the paper's number.

    ``text`` is "" where the grid has no run; ``paper`` is "" where the paper has none.
    """

    text: str = ""
    bold: bool = False
    notes: tuple[str, ...] = ()
    paper: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    kind: Literal["value", "difference", "average"]
    label: str
    axes: dict[str, str]
    group: int | None
    words: dict[Column, Words]


def lines(table: Table) -> list[Line]:
    """Return the lines of a table: rows, their differences beneath, averages last."""
    found: list[Line] = []
    for row in table.rows:
        about = row.about
        values = {column: _value(entry) for column, entry in row.entries.items()}
        found.append(Line("value", about.label, about.axes, about.group, values))
        if about.base and table.quantity.compared:
            label = f"difference to {about.base.label}"
            words = {
                column: _difference(entry) for column, entry in row.entries.items()
            }
            found.append(Line("difference", label, about.axes, about.group, words))
    for average in table.averages:
        label = f"average gain of {average.label.removeprefix('+ ')}"
        words = {column: _gain(gain) for column, gain in average.entries.items()}
        found.append(Line("average", label, average.axes, None, words))
    return found


def _value(entry: Entry) -> Words:
    return Words(
        text=_number(entry),
        bold=entry.best,
        notes=_notes(entry),
        paper=_paper(entry.paper),
    )


def _number(entry: Entry) -> str:
    found = entry.estimate
    if found is None:
        if entry.failed:
            return FAILED
        return NOT_RUN if entry.missing else NO_NUMBER
    if found.deviation is None:
        return f"{found.mean:.{DECIMALS}f}"
    return f"{found.mean:.{DECIMALS}f} ± {found.deviation:.{DECIMALS}f}"


def _notes(entry: Entry) -> tuple[str, ...]:
    notes = [OTHER_SETTINGS] if entry.other else []
    if entry.estimate and len(entry.values) < len(entry.seeds):
        note = f"{len(entry.values)} of {len(entry.seeds)} seeds"
        notes.append(note + (f", {len(entry.failed)} failed" if entry.failed else ""))
    return tuple(notes)


def _difference(entry: Entry) -> Words:
    found = entry.difference
    paper = "" if entry.paper_difference is None else _signed(entry.paper_difference)
    if found is None:
        return Words(text=NO_PAIR, paper=paper)
    text = _signed(found.mean)
    notes = [OTHER_SETTINGS] if entry.other or entry.base_other else []
    if found.low is None or found.high is None:
        notes.append(ONE_PAIR)
    else:
        text += f" [{_signed(found.low)}, {_signed(found.high)}]"
        if found.count < len(entry.seeds):
            notes.append(f"{found.count} of {len(entry.seeds)} pairs")
    return Words(text, notes=tuple(notes), paper=paper)


def _gain(gain: Gain) -> Words:
    few = 0 < gain.count < gain.methods
    return Words(
        text=NO_PAIR if gain.mean is None else _signed(gain.mean),
        notes=(f"{gain.count} of {gain.methods} methods",) if few else (),
        paper=_signed(gain.paper) if isinstance(gain.paper, float) else "",
    )


def _signed(number: float) -> str:
    # A hyphen: what copies a number out of a table reads no typographic minus.
    return f"{number:+.{DECIMALS}f}"


def _paper(number: Published | None) -> str:
    if number is None:
        return ""
    return f"{number:.{DECIMALS}f}" if isinstance(number, float) else number


def legend(table: Table) -> list[str]:
    """Return what needs to be explained, of what is there."""
    found = lines(table)
    words = [words for line in found for words in line.words.values()]
    texts = {one.text for one in words}
    notes = [note for one in words for note in one.notes]
    kinds = {line.kind for line in found}
    unlike = dict.fromkeys(
        key
        for row in table.rows
        for entry in row.entries.values()
        for key in entry.unlike_paper
    )
    explained = [
        (bool(table.quantity.note), table.quantity.note),
        (any("±" in text for text in texts), "±: standard deviation over the seeds."),
        (any(one.bold for one in words), "Bold: the best of a method."),
        (
            "difference" in kinds,
            "Difference: of runs with the same seed, in the units of the table.",
        ),
        (
            any("[" in text for text in texts),
            "[ , ]: 95 % confidence interval of the difference (Student's t).",
        ),
        (ONE_PAIR in notes, f"{ONE_PAIR}: one seed alone has no confidence interval."),
        (NO_PAIR in texts, f"{NO_PAIR}: no seed is finished on both sides."),
        (any(one.paper for one in words), "paper: the published number."),
        (
            any(one.paper == NOT_CONVERGED for one in words),
            f"paper {NOT_CONVERGED}: it did not converge there.",
        ),
        (
            bool(unlike),
            "No published number stands beside runs with other settings than the "
            f"paper's: {', '.join(unlike)}.",
        ),
        (NOT_RUN in texts, f"{NOT_RUN}: no seed is finished yet."),
        (FAILED in texts, f"{FAILED}: the last attempt failed, no seed is finished."),
        (
            NO_NUMBER in texts,
            f"{NO_NUMBER}: finished, but summary.json has no such number.",
        ),
        (
            any("seeds" in note for note in notes),
            "k of n seeds: the others are not run, failed or have no number.",
        ),
        (
            OTHER_SETTINGS in notes,
            f"{OTHER_SETTINGS} a run had other settings than the grid asks for.",
        ),
    ]
    return [text for there, text in explained if there]
