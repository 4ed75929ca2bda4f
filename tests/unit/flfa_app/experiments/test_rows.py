"""Grids with other axes than a method with and without FLFA."""

from __future__ import annotations

from pathlib import Path

from flfa_app.experiments.analysis.comparison import compare_runs
from flfa_app.experiments.analysis.row_layout import layout_rows
from flfa_app.experiments.report.tables import render_tables
from tests.results_folder import AXES, Axes, cell_of, finish, finish_all, make_grid

CIFAR = {"cifar10": {"dataset": "cifar10"}}


def test_flfa_comes_beneath_its_method_whatever_the_order_of_the_axes(
    tmp_path: Path,
) -> None:
    axes: Axes = {name: AXES[name] for name in ("flfa", "dataset", "method")}
    found = layout_rows(make_grid(tmp_path, axes))
    labels = ["FedAvg", "FedAvg + FLFA", "MOON", "MOON + FLFA"]
    assert [row.label for row in found] == labels
    assert [row.baseline.label if row.baseline else None for row in found] == [
        None,
        "FedAvg",
        None,
        "MOON",
    ]


def test_two_rules_are_told_apart(tmp_path: Path) -> None:
    """The base comes first, also where the grid names it last."""
    rules = {rule: {"flfa": rule} for rule in ("lowest", "highest", "none")}
    axes = {"dataset": CIFAR, "method": {"moon": {"algorithm": "moon"}}, "flfa": rules}
    found = layout_rows(make_grid(tmp_path, axes))
    labels = ["MOON", "MOON + FLFA (lowest)", "MOON + FLFA (highest)"]
    assert [row.label for row in found] == labels
    assert {row.group for row in found} == {0}


def test_numbers_of_layers(tmp_path: Path) -> None:
    """Without backpropagation in the grid the first row is what is compared with.

    The averages are over the methods: 2 layers (1 + 3) / 2; the paper's -0.78.
    """
    layers = {str(n): {"num-fa-layers": n} for n in (1, 2)}
    axes = {
        "dataset": {"bloodmnist": {"dataset": "bloodmnist"}},
        "method": AXES["method"],
        "num-fa-layers": layers,
    }
    results = make_grid(tmp_path, axes, seeds=(0,), table="fa_layers")
    gains = {("fedavg", "2"): 0.01, ("moon", "2"): 0.03}
    finish_all(
        results,
        lambda c: 0.5 + gains.get((c.axes["method"], c.axes["num-fa-layers"]), 0),
    )
    text = render_tables(results, "markdown")
    assert "| FedAvg, num-fa-layers 2 | **51.00** · paper 60.76 |" in text
    assert (
        "| *difference to MOON, num-fa-layers 1* | +3.00 (1 pair) · paper +0.75 |"
        in text
    )
    assert "| *average gain of num-fa-layers 2* | +2.00 · paper -0.78 |" in text


def test_ablations_have_one_base(tmp_path: Path) -> None:
    variants = {
        "bp": {"flfa": "none"},
        "flfa": {"flfa": "lowest"},
        "random": {"flfa": "lowest", "feedback": "random"},
        "unscaled": {"flfa": "lowest", "scaling": "none"},
    }
    results = make_grid(
        tmp_path, {"dataset": CIFAR, "variant": variants}, table="ablation"
    )
    (table,) = compare_runs(results)
    assert [row.layout.label for row in table.rows] == [
        f"variant {v}" for v in variants
    ]
    papers = [entry.paper for row in table.rows for entry in row.entries.values()]
    assert papers == [65.81, 68.05, 64.02, 65.21]
    gaps = [e.paper_difference for row in table.rows for e in row.entries.values()]
    assert gaps[0] is None
    assert [round(gap, 2) for gap in gaps[1:] if gap] == [2.24, -1.79, -0.6]


def test_other_settings_make_other_groups(tmp_path: Path) -> None:
    """FedAvg with 10 nodes is no base of FedAvg with 20 nodes."""
    axes = {
        "dataset": CIFAR,
        "nodes": {"few": {"nodes": 10}, "many": {"nodes": 20}},
        "flfa": AXES["flfa"],
    }
    found = layout_rows(make_grid(tmp_path, axes))
    assert [row.group for row in found] == [0, 0, 1, 1]
    assert [row.label for row in found] == [
        "BP, nodes few",
        "FLFA, nodes few",
        "BP, nodes many",
        "FLFA, nodes many",
    ]


def test_selections_have_a_column_for_each_block(tmp_path: Path) -> None:
    rules = {rule: {"flfa": rule} for rule in ("lowest", "highest")}
    axes = {"dataset": CIFAR, "flfa": rules}
    results = make_grid(
        tmp_path, axes, seeds=(0, 1), table="selection", metric="selection-frequency"
    )
    assert "No finished run has these numbers." in render_tables(results, "markdown")
    for seed, stem in ((0, 0.2), (1, 0.4)):
        share = {"stem": stem, "stage 1": 1 - stem}
        cell = cell_of(results, seed, flfa="lowest")
        finish(results, cell, 0.5, **{"selection-frequency": share})
    text = render_tables(results, "markdown")
    # 20 and 40: mean 30, deviation √200.
    assert "|  | stem | stage 1 |" in text
    assert "| FLFA (lowest) | 30.00 ± 14.14 · paper 17.69 | 70.00 ± 14.14" in text
    assert (
        "| FLFA (highest) | *not run* · paper 16.37 | *not run* · paper 9.76 |" in text
    )
    assert "difference" not in text


def test_further_test_sets_have_a_table(tmp_path: Path) -> None:
    axes = {"dataset": CIFAR, "method": {"fedavg": {}}, "flfa": AXES["flfa"]}
    results = make_grid(tmp_path, axes, seeds=(0,), table="table1")
    finish_all(results, lambda cell: 0.5, **{"extra-accuracy": {"cifar10.1-v6": 0.4}})
    text = render_tables(results, "markdown")
    assert "Accuracy on further test sets, in %" in text
    assert "|  | cifar10.1-v6 |" in text
    assert "| FedAvg | **40.00** · paper 52.82 |" in text
