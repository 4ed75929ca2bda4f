"""The rows of a grid's tables: each method, and beneath it the method with FLFA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flfa_app.experiments.analysis.quantities import FLFA_KEYS, settings_without
from flfa_app.experiments.store import Cell, Grid, Results
from flfa_app.methods import ALGORITHMS

__all__ = ["RowCells", "display", "row_label", "rows"]

NAMES = {
    **{name: method.display_name for name, method in ALGORITHMS.items()},
    "bloodmnist": "BloodMNIST",
    "organcmnist": "OrganCMNIST",
    "organsmnist": "OrganSMNIST",
    "pathmnist": "PathMNIST",
    "fashionmnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
}


@dataclass(frozen=True)
class RowCells:
    """The runs of one row: all with the same values on all axes but the column's.

    ``base`` is the row it is compared with, the method without FLFA; None if it is
    one itself. A base and the rows compared with it are a ``group``.
    """

    label: str
    axes: dict[str, str]
    group: int
    base: RowCells | None
    cells: dict[str, list[Cell]]


def rows(results: Results) -> list[RowCells]:
    """Return the rows of a grid, in its order, but each beneath its base."""
    grid = results.grid
    names = [axis for axis in grid.axes if axis != grid.columns]
    by_axes: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
    for cell in results.cells:
        columns = by_axes.setdefault(tuple(cell.axes[name] for name in names), {})
        columns.setdefault(cell.axes[grid.columns], []).append(cell)
    groups: list[list[dict[str, list[Cell]]]] = []
    group_of: dict[str, int] = {}
    for columns in by_axes.values():
        # What two rows of a group have in common: all settings but FLFA's.
        alike = [
            settings_without(cells[0], FLFA_KEYS | {"seed"})
            for cells in columns.values()
        ]
        known = [group_of[settings] for settings in alike if settings in group_of]
        group = known[0] if known else len(groups)
        if not known:
            groups.append([])
        groups[group].append(columns)
        group_of.update(dict.fromkeys(alike, group))
    return [row for i, group in enumerate(groups) for row in _group(grid, i, group)]


def _group(
    grid: Grid, number: int, members: Sequence[dict[str, list[Cell]]]
) -> list[RowCells]:
    """Return a group's rows; without a run without FLFA its first row is the base."""
    firsts = [next(iter(columns.values()))[0] for columns in members]
    plain = [cell.run_config["flfa"] == "none" for cell in firsts]
    start = plain.index(True) if any(plain) else 0
    made: list[RowCells] = []
    for i in sorted(range(len(members)), key=lambda i: i != start):
        axes = {k: v for k, v in firsts[i].axes.items() if k != grid.columns}
        base = made[0] if made else None
        made.append(RowCells(row_label(axes, grid), axes, number, base, members[i]))
    return made


def row_label(axes: Mapping[str, str], grid: Grid) -> str:
    """Return a row's name: the method, ``+ FLFA``, and what else tells rows apart."""
    rules = [rule for rule in grid.axes.get("flfa", []) if rule != "none"]
    parts = [display(axes["method"])] if "method" in axes else []
    if rule := axes.get("flfa"):
        name = "FLFA" if len(rules) == 1 else f"FLFA ({rule})"
        if rule != "none":
            parts.append(f"+ {name}" if parts else name)
        elif not parts:
            parts.append("BP")
    others = [
        f"{axis} {display(value)}"
        for axis, value in axes.items()
        if axis not in ("method", "flfa") and len(grid.axes[axis]) > 1
    ]
    return ", ".join([part for part in (" ".join(parts), *others) if part]) or "all"


def display(value: str) -> str:
    """Return the usual spelling of a method or data set; others stay as they are."""
    return NAMES.get(value, value)
