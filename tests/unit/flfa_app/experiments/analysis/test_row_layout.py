"""Rows of grids with different axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.experiments.analysis.row_layout import layout_rows
from tests.results_folder import AXES, Axes, make_grid

CIFAR = {"cifar10": {"dataset": "cifar10"}}
# Axes, and for each row: its label, its group, the label of its baseline.
Row = tuple[str, int, str | None]
CASES: dict[str, tuple[Axes, list[Row]]] = {
    "FLFA follows its method whatever the order of the axes": (
        {axis: AXES[axis] for axis in ("flfa", "dataset", "method")},
        [
            ("FedAvg", 0, None),
            ("FedAvg + FLFA", 0, "FedAvg"),
            ("MOON", 1, None),
            ("MOON + FLFA", 1, "MOON"),
        ],
    ),
    "two rules; the baseline comes first though the grid has it last": (
        {
            "dataset": CIFAR,
            "method": {"moon": {"algorithm": "moon"}},
            "flfa": {rule: {"flfa": rule} for rule in ("lowest", "highest", "none")},
        },
        [
            ("MOON", 0, None),
            ("MOON + FLFA (lowest)", 0, "MOON"),
            ("MOON + FLFA (highest)", 0, "MOON"),
        ],
    ),
    "rows with other settings make other groups": (
        {
            "dataset": CIFAR,
            "nodes": {"few": {"nodes": 10}, "many": {"nodes": 20}},
            "flfa": AXES["flfa"],
        },
        [
            ("BP, nodes few", 0, None),
            ("FLFA, nodes few", 0, "BP, nodes few"),
            ("BP, nodes many", 1, None),
            ("FLFA, nodes many", 1, "BP, nodes many"),
        ],
    ),
    "without backpropagation the first row is the baseline": (
        {"dataset": CIFAR, "layers": {n: {"num-fa-layers": int(n)} for n in "12"}},
        [("layers 1", 0, None), ("layers 2", 0, "layers 1")],
    ),
    "an axis with one value is not named": (
        {"dataset": CIFAR, "epochs": {"5": {"local-epochs": 5}}},
        [("all", 0, None)],
    ),
}


@pytest.mark.parametrize(("axes", "expected"), CASES.values(), ids=CASES)
def test_rows(tmp_path: Path, axes: Axes, expected: list[Row]) -> None:
    rows = layout_rows(make_grid(tmp_path, axes))
    assert expected == [
        (row.label, row.group, row.baseline.label if row.baseline else None)
        for row in rows
    ]
