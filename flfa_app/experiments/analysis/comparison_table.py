"""The content of a results table, independent of its format."""

from __future__ import annotations

from dataclasses import dataclass

from flfa_app.experiments.analysis.paper import Published
from flfa_app.experiments.analysis.quantities import Quantity
from flfa_app.experiments.analysis.row_layout import RowLayout
from flfa_app.experiments.analysis.statistics import PairedDifference, SampleStatistics

__all__ = [
    "DECIMALS",
    "AverageGain",
    "AverageRow",
    "ComparisonTable",
    "ResultRow",
    "TableColumn",
    "TableEntry",
]

DECIMALS = 2


@dataclass(frozen=True)
class TableColumn:
    """A value of the column axis, and the part if the quantity has parts."""

    value: str
    part: str
    label: str


@dataclass(frozen=True)
class TableEntry:
    """The numbers of one row and column over all seeds.

    Attributes
    ----------
    values : dict[int, float]
        Numbers by seed.
    seeds, failed, missing, without_number, other_settings : list[int]
        All requested seeds; those that failed; those that were not run; those that are
        finished but lack this number; those that ran with other settings than the grid
        has, whose numbers count nevertheless.
    statistics : SampleStatistics | None
        Mean and deviation of the values; None without any.
    paper : float | str | None
        The published number; None if there is none for a run with these settings.
    paper_differing_keys : tuple[str, ...]
        Settings in which the paper's runs differ, if that is why ``paper`` is None.
    is_best : bool
        The best mean of its group.
    baseline_other_settings : tuple[int, ...]
        Seeds of the baseline that ran with other settings.
    difference : PairedDifference | None
        Difference to the baseline.
    paper_difference : float | None
        The same difference of the published numbers.
    """

    values: dict[int, float]
    seeds: list[int]
    failed: list[int]
    missing: list[int]
    without_number: list[int]
    other_settings: list[int]
    statistics: SampleStatistics | None
    paper: Published | None
    paper_differing_keys: tuple[str, ...] = ()
    is_best: bool = False
    baseline_other_settings: tuple[int, ...] = ()
    difference: PairedDifference | None = None
    paper_difference: float | None = None


@dataclass(frozen=True)
class ResultRow:
    """A row and its entries; columns for which the grid has no run are absent."""

    layout: RowLayout
    entries: dict[TableColumn, TableEntry]


@dataclass(frozen=True)
class AverageGain:
    """The mean difference of a column over the methods.

    ``count`` of ``methods`` have a difference.
    """

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
