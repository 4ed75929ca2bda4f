"""Compares the runs of a grid: means over seeds and differences to baselines.

The result does not depend on the format of the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flfa_app.experiments.analysis.paper import Published, paper_number
from flfa_app.experiments.analysis.quantities import Quantity, list_quantities
from flfa_app.experiments.analysis.row_layout import (
    RowLayout,
    display_name,
    layout_rows,
    row_label,
)
from flfa_app.experiments.analysis.statistics import (
    PairedDifference,
    SampleStatistics,
    paired_difference,
    sample_statistics,
)
from flfa_app.experiments.store import Cell, GridResults, GridSpec

DECIMALS = 2


@dataclass(frozen=True)
class TableColumn:
    """A value of the column axis, and the part if the quantity has parts."""

    value: str
    part: str
    label: str


@dataclass(frozen=True)
class TableEntry:
    """The numbers of one row and column by seed, and how many seeds are in each state.

    Seeds ``without_number`` are finished but lack this number. Those with
    ``other_settings`` than the grid has count nevertheless. ``paper`` is None if there
    is no published number, or if the paper's runs differ in
    ``paper_differing_keys``. The differences are those to the baseline.
    """

    values: dict[int, float]
    seeds: int
    failed: int
    missing: int
    without_number: int
    other_settings: int
    statistics: SampleStatistics | None
    paper: Published | None
    paper_differing_keys: tuple[str, ...] = ()
    is_best: bool = False
    baseline_other_settings: int = 0
    difference: PairedDifference | None = None
    paper_difference: float | None = None


@dataclass(frozen=True)
class ResultRow:
    """A row and its entries; columns for which the grid has no run are absent."""

    layout: RowLayout
    entries: dict[TableColumn, TableEntry]


@dataclass(frozen=True)
class AverageGain:
    """The mean difference of a column over the methods; ``count`` of them have one."""

    mean: float | None
    count: int
    methods: int
    paper: Published | None


@dataclass(frozen=True)
class AverageRow:
    """The average gains of rows that differ only in their method."""

    label: str
    axes: dict[str, str]
    gains: dict[TableColumn, AverageGain]


@dataclass(frozen=True)
class ComparisonTable:
    """One quantity of all runs."""

    quantity: Quantity
    columns: list[TableColumn]
    rows: list[ResultRow]
    averages: list[AverageRow]


def compare_runs(results: GridResults) -> list[ComparisonTable]:
    """Return a table for each quantity: the grid's metric first, relative time last."""
    comparer = _Comparer(results)
    return [comparer.compare(quantity) for quantity in list_quantities(results)]


class _Comparer:
    def __init__(self, results: GridResults) -> None:
        self.spec = results.spec
        self.layouts = layout_rows(results)
        self.status = {cell.id: results.status(cell) for cell in results.cells}
        self.other_settings = {
            cell.id
            for cell in results.cells
            if self.status[cell.id] == "finished" and results.setting_differences(cell)
        }

    def compare(self, quantity: Quantity) -> ComparisonTable:
        columns = self._columns(quantity)
        rows = [
            ResultRow(
                layout,
                {
                    column: self._entry(cells, column, quantity)
                    for column in columns
                    if (cells := layout.cells.get(column.value))
                },
            )
            for layout in self.layouts
        ]
        if not quantity.higher_is_better:
            return ComparisonTable(quantity, columns, rows, [])
        rows = [_compare_in_group(row, rows) for row in rows]
        return ComparisonTable(quantity, columns, rows, _average_rows(self.spec, rows))

    def _columns(self, quantity: Quantity) -> list[TableColumn]:
        """Return the columns; a quantity with parts has one for each part of a run."""
        columns = []
        for value in self.spec.axes[self.spec.columns]:
            cells = [cell for row in self.layouts for cell in row.cells.get(value, [])]
            parts = dict.fromkeys(part for c in cells for part in quantity.numbers(c))
            named_parts = [part for part in parts if part]
            if quantity.by_part and not named_parts:
                continue
            columns += [(value, part) for part in named_parts or [""]]
        several_values = len({value for value, _ in columns}) > 1

        def label(value: str, part: str) -> str:
            if not part:
                return display_name(value)
            return f"{display_name(value)}, {part}" if several_values else part

        return [TableColumn(value, part, label(value, part)) for value, part in columns]

    def _entry(
        self, cells: Sequence[Cell], column: TableColumn, quantity: Quantity
    ) -> TableEntry:
        numbers = {cell.seed: quantity.numbers(cell).get(column.part) for cell in cells}
        values = {seed: x for seed, x in numbers.items() if x is not None}
        states = Counter(self.status[cell.id] for cell in cells)
        paper, differing_keys = paper_number(
            self.spec.table, quantity.paper_quantity, cells[0], column.part
        )
        return TableEntry(
            values=values,
            seeds=len(cells),
            failed=states["failed"],
            missing=states["missing"],
            without_number=states["finished"] - len(values),
            other_settings=sum(cell.id in self.other_settings for cell in cells),
            statistics=sample_statistics(values.values()),
            paper=paper,
            paper_differing_keys=differing_keys,
        )


def _compare_in_group(row: ResultRow, table: Sequence[ResultRow]) -> ResultRow:
    """Return a row with its differences to the baseline and the marks of the best."""
    group = [other for other in table if other.layout.group == row.layout.group]
    baseline = group[0]
    entries = {}
    for column, entry in row.entries.items():
        means = [
            round(other.statistics.mean, DECIMALS)
            for member in group
            if (other := member.entries.get(column)) and other.statistics
        ]
        is_best = (
            entry.statistics is not None
            and len(means) > 1
            and round(entry.statistics.mean, DECIMALS) == max(means)
        )
        entries[column] = replace(entry, is_best=is_best)
        if row is not baseline and (base := baseline.entries.get(column)):
            paper_difference = None
            if isinstance(entry.paper, float) and isinstance(base.paper, float):
                paper_difference = entry.paper - base.paper
            entries[column] = replace(
                entries[column],
                baseline_other_settings=base.other_settings,
                difference=paired_difference(entry.values, base.values),
                paper_difference=paper_difference,
            )
    return ResultRow(row.layout, entries)


def _average_rows(spec: GridSpec, table: Sequence[ResultRow]) -> list[AverageRow]:
    """Return the average gains over methods, for variants with several methods."""
    variants: dict[tuple[tuple[str, str], ...], list[ResultRow]] = {}
    for row in table:
        if row.layout.baseline:
            axes = {k: v for k, v in row.layout.axes.items() if k != "method"}
            variants.setdefault(tuple(axes.items()), []).append(row)
    return [
        AverageRow(row_label(dict(axes), spec), dict(axes), _average_gains(spec, rows))
        for axes, rows in variants.items()
        if len(rows) > 1
    ]


def _average_gains(
    spec: GridSpec, rows: Sequence[ResultRow]
) -> dict[TableColumn, AverageGain]:
    gains = {}
    for column in dict.fromkeys(column for row in rows for column in row.entries):
        with_column = [row for row in rows if column in row.entries]
        differences = [row.entries[column].difference for row in with_column]
        statistics = sample_statistics([x.mean for x in differences if x])
        cell = with_column[0].layout.cells[column.value][0]
        gains[column] = AverageGain(
            mean=statistics.mean if statistics else None,
            count=statistics.count if statistics else 0,
            methods=len(differences),
            paper=paper_number(spec.table, "average-gain", cell).number,
        )
    return gains
