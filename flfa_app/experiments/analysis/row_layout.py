"""The rows of a grid's tables: each method, followed by the method with FLFA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flfa_app.data.sources import DATASETS
from flfa_app.experiments.analysis.quantities import FLFA_KEYS, settings_without
from flfa_app.experiments.store import Cell, GridResults, GridSpec
from flfa_app.methods import ALGORITHMS

DISPLAY_NAMES = {
    **{name: method.display_name for name, method in ALGORITHMS.items()},
    **{name: source.display_name for name, source in DATASETS.items()},
}

# The cells of a row by value of the column axis; in a list only the seed differs.
ColumnCells = dict[str, list[Cell]]


@dataclass(frozen=True)
class RowLayout:
    """The runs of one row, with their common values on all axes but the columns'.

    A group is a baseline (the method without FLFA) and all rows compared with it. The
    baseline itself has None as ``baseline``.
    """

    label: str
    axes: dict[str, str]
    group: int
    baseline: RowLayout | None
    cells: ColumnCells


def layout_rows(results: GridResults) -> list[RowLayout]:
    """Return the rows of a grid in its order, except that baselines come first."""
    spec = results.spec
    row_axes = [axis for axis in spec.axes if axis != spec.columns]
    by_axes: dict[tuple[str, ...], ColumnCells] = {}
    for cell in results.cells:
        columns = by_axes.setdefault(tuple(cell.axes[axis] for axis in row_axes), {})
        columns.setdefault(cell.axes[spec.columns], []).append(cell)
    groups: list[list[ColumnCells]] = []
    group_of_settings: dict[str, list[ColumnCells]] = {}
    for columns in by_axes.values():
        # Rows of a group share all settings except FLFA's.
        settings = [
            settings_without(cells[0], FLFA_KEYS | {"seed"})
            for cells in columns.values()
        ]
        known = [group_of_settings[x] for x in settings if x in group_of_settings]
        group = known[0] if known else []
        if not known:
            groups.append(group)
        group.append(columns)
        group_of_settings |= dict.fromkeys(settings, group)
    return [
        row
        for number, members in enumerate(groups)
        for row in _layout_group(spec, number, members)
    ]


def _layout_group(
    spec: GridSpec, number: int, members: Sequence[ColumnCells]
) -> list[RowLayout]:
    """Return the rows of a group; the baseline is the first row without FLFA.

    If all rows use FLFA, it is the first row.
    """
    first_cells = [next(iter(columns.values()))[0] for columns in members]
    without_flfa = [cell.run_config["flfa"] == "none" for cell in first_cells]
    baseline_index = without_flfa.index(True) if any(without_flfa) else 0
    rows: list[RowLayout] = []
    for i in sorted(range(len(members)), key=lambda i: i != baseline_index):
        axes = {k: v for k, v in first_cells[i].axes.items() if k != spec.columns}
        baseline = rows[0] if rows else None
        label = row_label(axes, spec)
        rows.append(RowLayout(label, axes, number, baseline, members[i]))
    return rows


def row_label(axes: Mapping[str, str], spec: GridSpec) -> str:
    """Return a row's name: the method, ``+ FLFA``, and values of the other axes.

    Axes with a single value are left out.
    """
    rules = [rule for rule in spec.axes.get("flfa", []) if rule != "none"]
    parts = [display_name(axes["method"])] if "method" in axes else []
    if rule := axes.get("flfa"):
        flfa = "FLFA" if len(rules) == 1 else f"FLFA ({rule})"
        if rule != "none":
            parts.append(f"+ {flfa}" if parts else flfa)
        elif not parts:
            parts.append("BP")
    others = [
        f"{axis} {display_name(value)}"
        for axis, value in axes.items()
        if axis not in ("method", "flfa") and len(spec.axes[axis]) > 1
    ]
    return ", ".join([part for part in (" ".join(parts), *others) if part]) or "all"


def display_name(value: str) -> str:
    """Return the usual spelling of a method or data set; others stay as they are."""
    return DISPLAY_NAMES.get(value, value)
