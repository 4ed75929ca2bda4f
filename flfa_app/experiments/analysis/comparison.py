"""From the runs of a grid to rows, columns and differences, in no format yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from flfa_app.experiments.analysis.paper import Published, beside
from flfa_app.experiments.analysis.quantities import Quantity, quantities
from flfa_app.experiments.analysis.rows import RowCells, display, row_label, rows
from flfa_app.experiments.analysis.statistics import (
    Difference,
    Estimate,
    estimate,
    paired_difference,
)
from flfa_app.experiments.store import Cell, Grid, Results, Status

__all__ = ["DECIMALS", "Average", "Column", "Entry", "Row", "Table", "compare"]

DECIMALS = 2


@dataclass(frozen=True)
class Column:
    """A value of the column axis, and a part of the quantity if it has parts."""

    value: str
    part: str
    label: str


@dataclass(frozen=True)
class Entry:
    """What the seeds of one row and column say.

    ``failed``, ``missing``, ``empty`` (finished without this number) and ``other``
    (finished with other settings; its number counts) are seeds. ``base_other`` are the
    seeds of the row compared with that had other settings. ``unlike_paper`` are the
    keys for which the paper's number is of other runs, and not shown.
    """

    values: dict[int, float]
    seeds: list[int]
    failed: list[int]
    missing: list[int]
    empty: list[int]
    other: list[int]
    estimate: Estimate | None
    paper: Published | None
    unlike_paper: tuple[str, ...] = ()
    best: bool = False
    base_other: tuple[int, ...] = ()
    difference: Difference | None = None
    paper_difference: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table; it has no entry where the grid has no such run."""

    about: RowCells
    entries: dict[Column, Entry]


@dataclass(frozen=True)
class Gain:
    """The mean of a column's differences over the methods that have one."""

    mean: float | None
    count: int
    methods: int
    paper: Published | None


@dataclass(frozen=True)
class Average:
    """The mean differences of all rows that differ in their method alone."""

    label: str
    axes: dict[str, str]
    entries: dict[Column, Gain]


@dataclass(frozen=True)
class Table:
    """One quantity of all runs."""

    quantity: Quantity
    columns: list[Column]
    rows: list[Row]
    averages: list[Average]


def compare(results: Results) -> list[Table]:
    """Return the tables of a grid: its metric first, relative time last."""
    status = {cell.id: results.status(cell) for cell in results.cells}
    other = {
        cell.id
        for cell in results.cells
        if status[cell.id] == "finished" and not results.matches(cell)
    }
    about = rows(results)
    return [
        _table(results.grid, about, quantity, status, other)
        for quantity in quantities(results)
    ]


def _table(
    grid: Grid,
    about: Sequence[RowCells],
    quantity: Quantity,
    status: Mapping[str, Status],
    other: Collection[str],
) -> Table:
    columns = _columns(grid, about, quantity)
    made = [
        Row(
            row,
            {
                column: _entry(grid, cells, column, quantity, status, other)
                for column in columns
                if (cells := row.cells.get(column.value))
            },
        )
        for row in about
    ]
    if not quantity.compared:
        return Table(quantity, columns, made, [])
    made = [_compared(row, made) for row in made]
    return Table(quantity, columns, made, _averages(grid, made))


def _columns(grid: Grid, about: Sequence[RowCells], quantity: Quantity) -> list[Column]:
    """Return the columns; a quantity of parts has one for each that a run has."""
    found = []
    for value in grid.axes[grid.columns]:
        cells = [cell for row in about for cell in row.cells.get(value, [])]
        parts = dict.fromkeys(part for c in cells for part in quantity.numbers(c))
        named = [part for part in parts if part]
        if quantity.by_part and not named:
            continue
        found += [(value, part) for part in named or [""]]
    several = len({value for value, _ in found}) > 1

    def label(value: str, part: str) -> str:
        return ", ".join([display(value)] * (several or not part) + [part] * bool(part))

    return [Column(value, part, label(value, part)) for value, part in found]


def _entry(
    grid: Grid,
    cells: Sequence[Cell],
    column: Column,
    quantity: Quantity,
    status: Mapping[str, Status],
    other: Collection[str],
) -> Entry:
    numbers = {cell.seed: quantity.numbers(cell).get(column.part) for cell in cells}
    values = {seed: number for seed, number in numbers.items() if number is not None}
    by_status = {
        name: [cell.seed for cell in cells if status[cell.id] == name]
        for name in ("finished", "failed", "missing")
    }
    paper = beside(grid.table, quantity.paper, cells[0], column.part)
    return Entry(
        values=values,
        seeds=list(numbers),
        failed=by_status["failed"],
        missing=by_status["missing"],
        empty=[seed for seed in by_status["finished"] if seed not in values],
        other=[cell.seed for cell in cells if cell.id in other],
        estimate=estimate(list(values.values())),
        paper=paper.number,
        unlike_paper=paper.unlike,
    )


def _compared(row: Row, table: Sequence[Row]) -> Row:
    """Return a row with its differences to its base, and the best of its group."""
    group = [other for other in table if other.about.group == row.about.group]
    base = group[0]
    entries = {}
    for column, entry in row.entries.items():
        rivals = [
            round(rival.estimate.mean, DECIMALS)
            for other in group
            if (rival := other.entries.get(column)) and rival.estimate
        ]
        best = (
            entry.estimate is not None
            and len(rivals) > 1
            and round(entry.estimate.mean, DECIMALS) == max(rivals)
        )
        entries[column] = replace(entry, best=best)
        if row is not base and (against := base.entries.get(column)):
            entries[column] = replace(
                entries[column],
                base_other=tuple(against.other),
                difference=paired_difference(entry.values, against.values),
                paper_difference=_minus(entry.paper, against.paper),
            )
    return Row(row.about, entries)


def _minus(ours: Published | None, base: Published | None) -> float | None:
    if isinstance(ours, float) and isinstance(base, float):
        return ours - base
    return None


def _averages(grid: Grid, table: Sequence[Row]) -> list[Average]:
    variants: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in table:
        if row.about.base:
            axes = {k: v for k, v in row.about.axes.items() if k != "method"}
            variants.setdefault(tuple(axes.items()), []).append(row)
    return [
        Average(row_label(dict(axes), grid), dict(axes), _gains(grid, alike))
        for axes, alike in variants.items()
        if len(alike) > 1
    ]


def _gains(grid: Grid, alike: Sequence[Row]) -> dict[Column, Gain]:
    """Return the mean difference of each column over rows that differ in method."""
    gains = {}
    for column in dict.fromkeys(column for row in alike for column in row.entries):
        entries = [row.entries[column] for row in alike if column in row.entries]
        means = [entry.difference.mean for entry in entries if entry.difference]
        mean = estimate(means)
        cell = next(
            row.about.cells[column.value][0] for row in alike if column in row.entries
        )
        gains[column] = Gain(
            mean.mean if mean else None,
            len(means),
            len(entries),
            beside(grid.table, "average-gain", cell).number,
        )
    return gains
