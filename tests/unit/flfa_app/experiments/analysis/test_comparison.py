"""Tables of grids whose axes are not just method and FLFA."""

from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.experiments.analysis.comparison import compare_runs
from flfa_app.experiments.report.tables import render_tables
from tests.results_folder import AXES, find_cell, finish_all, finish_cell, make_grid

CIFAR = {"cifar10": {"dataset": "cifar10"}}
FEDAVG = {"fedavg": {"algorithm": "fedavg"}}


def test_average_gain_over_methods(tmp_path: Path) -> None:
    """Two layers gain (1 + 3) / 2 over one layer; the paper has -0.78."""
    axes = {
        "dataset": {"bloodmnist": {"dataset": "bloodmnist"}},
        "method": AXES["method"],
        "num-fa-layers": {str(n): {"num-fa-layers": n} for n in (1, 2)},
    }
    results = make_grid(tmp_path, axes, seeds=(0,), table="fa_layers")
    gains = {"fedavg": 0.01, "moon": 0.03}
    for cell in results.cells:
        gain = gains[cell.axes["method"]] * (cell.axes["num-fa-layers"] == "2")
        finish_cell(results, cell, 0.5 + gain)
    text = render_tables(results, "markdown")
    assert "| FedAvg, num-fa-layers 2 | **51.00** · paper 60.76 |" in text
    difference = "*difference to MOON, num-fa-layers 1* | +3.00 (1 pair) · paper +0.75"
    assert f"| {difference} |" in text
    assert "| *average gain of num-fa-layers 2* | +2.00 · paper -0.78 |" in text


def test_ablations_have_one_baseline(tmp_path: Path) -> None:
    variants = {
        "bp": {"flfa": "none"},
        "flfa": {"flfa": "lowest"},
        "random": {"flfa": "lowest", "feedback": "random"},
        "unscaled": {"flfa": "lowest", "scaling": "none"},
    }
    axes = {"dataset": CIFAR, "variant": variants}
    (table,) = compare_runs(make_grid(tmp_path, axes, table="ablation"))
    labels = [row.layout.label for row in table.rows]
    assert labels == [f"variant {variant}" for variant in variants]
    entries = [entry for row in table.rows for entry in row.entries.values()]
    assert [entry.paper for entry in entries] == [65.81, 68.05, 64.02, 65.21]
    assert entries[0].paper_difference is None
    differences = [entry.paper_difference for entry in entries[1:]]
    assert differences == pytest.approx([2.24, -1.79, -0.6])


def test_a_column_for_each_block(tmp_path: Path) -> None:
    """Shares of 20 and 40 % have the mean 30 and the deviation √200."""
    rules = {rule: {"flfa": rule} for rule in ("lowest", "highest")}
    axes, metric = {"dataset": CIFAR, "flfa": rules}, "selection-frequency"
    results = make_grid(tmp_path, axes, seeds=(0, 1), table="selection", metric=metric)
    assert "No finished run has these numbers." in render_tables(results, "markdown")
    for seed, stem in ((0, 0.2), (1, 0.4)):
        shares = {"stem": stem, "stage 1": 1 - stem}
        cell = find_cell(results, seed, flfa="lowest")
        finish_cell(results, cell, **{metric: shares})
    text = render_tables(results, "markdown")
    assert "|  | stem | stage 1 |" in text
    assert "| FLFA (lowest) | 30.00 ± 14.14 · paper 17.69 | 70.00 ± 14.14" in text
    paper = "*not run* · paper 16.37 | *not run* · paper 9.76"
    assert f"| FLFA (highest) | {paper} |" in text
    assert "difference" not in text


@pytest.mark.parametrize(
    ("datasets", "heads"),
    [
        (CIFAR, "CIFAR-10; v4; cifar10.1-v6"),
        (
            AXES["dataset"],
            "BloodMNIST; PathMNIST; BloodMNIST, v4; BloodMNIST, cifar10.1-v6; "
            "PathMNIST, v4; PathMNIST, cifar10.1-v6",
        ),
    ],
)
def test_further_test_sets(tmp_path: Path, datasets: dict, heads: str) -> None:
    """A column has the data set in its label only if there are several."""
    axes = {"dataset": datasets, "method": FEDAVG, "flfa": AXES["flfa"]}
    results = make_grid(tmp_path, axes, seeds=(0,), table="table1")
    finish_all(results, **{"extra-accuracy": {"v4": 0.6, "cifar10.1-v6": 0.4}})
    tables = compare_runs(results)[:2]
    labels = [column.label for table in tables for column in table.columns]
    assert labels == heads.split("; ")
    text = render_tables(results, "markdown")
    assert "Accuracy on further test sets, in %" in text
    paper = "| FedAvg | **60.00** | **40.00** · paper 52.82 |"
    assert (paper in text) == (datasets is CIFAR)


def test_relative_time(tmp_path: Path) -> None:
    """Rounds of MOON train for 3 s, those of FedAvg for 2 s; evaluation is left out."""
    results = make_grid(tmp_path, table="table1")
    moon = [cell for cell in results.cells if cell.axes["method"] == "moon"]
    for cell in moon:
        finish_cell(results, cell, seconds=3.0)
    assert [table.quantity.key for table in compare_runs(results)] == ["score"]
    for cell in results.cells:
        if cell not in moon:
            finish_cell(results, cell, seconds=2.0)
    text = render_tables(results, "markdown").partition("## Time a round, relative")[2]
    assert "| FedAvg | 1.00 ± 0.00 · paper 1.00 |" in text
    assert "| MOON + FLFA | 1.50 ± 0.00 · paper 1.69 |" in text
    assert "difference to" not in text
