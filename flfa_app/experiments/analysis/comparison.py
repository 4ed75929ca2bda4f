"""Compares the runs of a grid: means over seeds and differences to baselines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from flfa_app.experiments.analysis.comparison_table import (
    DECIMALS,
    AverageGain,
    AverageRow,
    ComparisonTable,
    ResultRow,
    TableColumn,
    TableEntry,
)
from flfa_app.experiments.analysis.paper import Published, paper_number
from flfa_app.experiments.analysis.quantities import Quantity, list_quantities
from flfa_app.experiments.analysis.row_layout import (
    RowLayout,
    display_name,
    layout_rows,
    row_label,
)
from flfa_app.experiments.analysis.statistics import (
    paired_difference,
    sample_statistics,
)
from flfa_app.experiments.store import Cell, CellStatus, GridResults, GridSpec

__all__ = ["compare_runs"]


def compare_runs(results: GridResults) -> list[ComparisonTable]:
    """Return a table for each quantity: the grid's metric first, relative time last."""
    status = {cell.id: results.status(cell) for cell in results.cells}
    other_settings = {
        cell.id
        for cell in results.cells
        if status[cell.id] == "finished" and not results.settings_match(cell)
    }
    layouts = layout_rows(results)
    return [
        _compare_quantity(results.spec, layouts, quantity, status, other_settings)
        for quantity in list_quantities(results)
    ]


def _compare_quantity(
    spec: GridSpec,
    layouts: Sequence[RowLayout],
    quantity: Quantity,
    status: Mapping[str, CellStatus],
    other_settings: Collection[str],
) -> ComparisonTable:
    columns = _make_columns(spec, layouts, quantity)
    rows = [
        ResultRow(
            layout,
            {
                column: _make_entry(
                    spec, cells, column, quantity, status, other_settings
                )
                for column in columns
                if (cells := layout.cells.get(column.value))
            },
        )
        for layout in layouts
    ]
    if not quantity.higher_is_better:
        return ComparisonTable(quantity, columns, rows, [])
    rows = [_compare_in_group(row, rows) for row in rows]
    return ComparisonTable(quantity, columns, rows, _average_rows(spec, rows))


def _make_columns(
    spec: GridSpec, layouts: Sequence[RowLayout], quantity: Quantity
) -> list[TableColumn]:
    """Return the columns; a quantity with parts has one for each part of any run."""
    columns = []
    for value in spec.axes[spec.columns]:
        cells = [cell for row in layouts for cell in row.cells.get(value, [])]
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


def _make_entry(
    spec: GridSpec,
    cells: Sequence[Cell],
    column: TableColumn,
    quantity: Quantity,
    status: Mapping[str, CellStatus],
    other_settings: Collection[str],
) -> TableEntry:
    numbers = {cell.seed: quantity.numbers(cell).get(column.part) for cell in cells}
    values = {seed: number for seed, number in numbers.items() if number is not None}

    def seeds_with(wanted: CellStatus) -> list[int]:
        return [cell.seed for cell in cells if status[cell.id] == wanted]

    paper = paper_number(spec.table, quantity.paper_quantity, cells[0], column.part)
    return TableEntry(
        values=values,
        seeds=list(numbers),
        failed=seeds_with("failed"),
        missing=seeds_with("missing"),
        without_number=[s for s in seeds_with("finished") if s not in values],
        other_settings=[cell.seed for cell in cells if cell.id in other_settings],
        statistics=sample_statistics(values.values()),
        paper=paper.number,
        paper_differing_keys=paper.differing_keys,
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
            entries[column] = replace(
                entries[column],
                baseline_other_settings=tuple(base.other_settings),
                difference=paired_difference(entry.values, base.values),
                paper_difference=_paper_difference(entry.paper, base.paper),
            )
    return ResultRow(row.layout, entries)


def _paper_difference(
    number: Published | None, baseline: Published | None
) -> float | None:
    if isinstance(number, float) and isinstance(baseline, float):
        return number - baseline
    return None


def _average_rows(spec: GridSpec, table: Sequence[ResultRow]) -> list[AverageRow]:
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
    """Return the mean difference of each column over rows of different methods."""
    gains = {}
    for column in dict.fromkeys(column for row in rows for column in row.entries):
        with_column = [row for row in rows if column in row.entries]
        entries = [row.entries[column] for row in with_column]
        statistics = sample_statistics(
            [entry.difference.mean for entry in entries if entry.difference]
        )
        cell = with_column[0].layout.cells[column.value][0]
        gains[column] = AverageGain(
            mean=statistics.mean if statistics else None,
            count=statistics.count if statistics else 0,
            methods=len(entries),
            paper=paper_number(spec.table, "average-gain", cell).number,
        )
    return gains
