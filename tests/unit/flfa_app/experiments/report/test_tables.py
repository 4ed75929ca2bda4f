"""Tables of invented runs; every expected number is computed by hand.

t(97.5 %, 2) is 4.3027, so half the interval of three differences with deviation s is
4.3027 s / √3 = 2.4842 s.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.store import Cell, GridResults
from tests.results_folder import (
    AXES,
    fail_cell,
    find_cell,
    finish_all,
    finish_cell,
    make_grid,
)

# By method, rule and seed; pathmnist has 0.1 less.
SCORES = {
    ("fedavg", "none"): (0.60, 0.62, 0.64),  # 62 ± 2
    ("fedavg", "lowest"): (0.63, 0.66, 0.69),  # 66 ± 3; differences 3, 4, 5
    ("moon", "none"): (0.70, 0.70, 0.70),  # 70 ± 0
    ("moon", "lowest"): (0.70, 0.69, 0.68),  # 69 ± 1; differences 0, -1, -2
}
FEDAVG = {"dataset": "bloodmnist", "method": "fedavg", "flfa": "none"}
MOON = FEDAVG | {"method": "moon"}


def score(cell: Cell) -> float:
    value = SCORES[cell.axes["method"], cell.axes["flfa"]][cell.seed]
    return value - 0.1 * (cell.axes["dataset"] == "pathmnist")


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path, table="table1")


def first_table(text: str) -> dict[str, list[str]]:
    """Read the first Markdown table: label -> the text of each column."""
    rows = {}
    for line in text.split("\n## ")[1].splitlines():
        if line.startswith("| "):
            label, *texts = (text.strip() for text in line.strip("| ").split(" | "))
            rows[label.strip("|* ")] = texts
    return rows


def test_markdown(results: GridResults) -> None:
    finish_all(results, score)
    text = render_tables(results, "markdown")
    table = [line for line in text.split("\n## ")[1].splitlines() if line[:1] == "|"]
    assert table == [
        "|  | BloodMNIST | PathMNIST |",
        "| --- | ---: | ---: |",
        "| FedAvg | 62.00 ± 2.00 · paper 59.26 | 52.00 ± 2.00 · paper 66.04 |",
        "| FedAvg + FLFA | **66.00 ± 3.00** · paper 61.73 "
        "| **56.00 ± 3.00** · paper 67.90 |",
        "| *difference to FedAvg* | +4.00 [+1.52, +6.48] · paper +2.47 "
        "| +4.00 [+1.52, +6.48] · paper +1.86 |",
        "| MOON | **70.00 ± 0.00** · paper 60.69 | **60.00 ± 0.00** · paper 66.69 |",
        "| MOON + FLFA | 69.00 ± 1.00 · paper 61.86 | 59.00 ± 1.00 · paper 69.21 |",
        "| *difference to MOON* | -1.00 [-3.48, +1.48] · paper +1.17 "
        "| -1.00 [-3.48, +1.48] · paper +2.52 |",
        # (4 - 1) / 2
        "| *average gain of FLFA* | +1.50 | +1.50 |",
    ]
    # The legend explains only what occurs.
    assert "±: standard deviation" in text
    absent = ("not run", "failed", "†", "no number", "no pair", "did not converge")
    assert not any(mark in text for mark in absent)


def test_incomplete_results_are_marked(results: GridResults) -> None:
    """FedAvg lacks a failed seed and one that was not run; MOON has no number."""
    finish_cell(results, find_cell(results, 0, **FEDAVG), 0.5)
    fail_cell(results, find_cell(results, 1, **FEDAVG), "out of memory")
    for seed in (0, 1, 2):
        cell = find_cell(results, seed, **FEDAVG | {"flfa": "lowest"})
        finish_cell(results, cell, 0.5 + seed / 10, settings={"learning-rate": 9.0})
        cell = find_cell(results, seed, **MOON | {"flfa": "lowest"})
        finish_cell(results, cell, None)
    fail_cell(results, find_cell(results, 0, **MOON), "out of memory")
    text = render_tables(results, "markdown")
    rows = {label: texts[0] for label, texts in first_table(text).items()}
    assert rows["FedAvg"] == "50.00 (1 of 3 seeds, 1 failed) · paper 59.26"
    assert rows["FedAvg + FLFA"] == "**60.00 ± 10.00** (†) · paper 61.73"
    assert rows["difference to FedAvg"] == "+0.00 (†) (1 pair) · paper +2.47"
    assert rows["MOON"] == "*failed* · paper 60.69"
    assert rows["MOON + FLFA"] == "*no number* · paper 61.86"
    assert rows["difference to MOON"] == "no pair · paper +1.17"
    assert rows["average gain of FLFA"] == "+0.00 (1 of 2 methods)"
    assert first_table(text)["MOON"][1] == "*not run* · paper 66.69"
    marks = ("not run:", "failed:", "no number:", "k of n seeds", "† a run", "no pair:")
    assert all(mark in text for mark in marks)


def test_other_settings_of_the_baseline_mark_the_difference(
    results: GridResults,
) -> None:
    """Two of three seeds have a pair."""
    for seed in (0, 1):
        cell = find_cell(results, seed, **FEDAVG)
        finish_cell(results, cell, 0.5, settings={"learning-rate": 9.0})
    for seed in (0, 1, 2):
        finish_cell(
            results, find_cell(results, seed, **FEDAVG | {"flfa": "lowest"}), 0.6
        )
    rows = first_table(render_tables(results, "markdown"))
    assert rows["FedAvg"][0] == "50.00 ± 0.00 (†) (2 of 3 seeds) · paper 59.26"
    assert rows["FedAvg + FLFA"][0] == "**60.00 ± 0.00** · paper 61.73"
    difference = "+10.00 [+10.00, +10.00] (†) (2 of 3 pairs) · paper +2.47"
    assert rows["difference to FedAvg"][0] == difference


def test_an_old_result_does_not_hide_a_failure(results: GridResults) -> None:
    """The settings were changed, and the attempt with the new ones failed."""
    for seed in (0, 1, 2):
        cell = find_cell(results, seed, **FEDAVG)
        finish_cell(results, cell, 0.5, settings={"learning-rate": 9.0})
        fail_cell(results, cell, "out of memory")
    text = render_tables(results, "markdown")
    assert first_table(text)["FedAvg"][0] == "*failed* · paper 59.26"
    assert "†" not in text


def test_published_numbers_need_the_settings_of_the_paper(tmp_path: Path) -> None:
    """Table 1 has Dirichlet 0.3 and 5 epochs: one of four combinations."""
    axes = {
        "dataset": {"bloodmnist": {"dataset": "bloodmnist"}},
        "method": {"fedavg": {"algorithm": "fedavg"}},
        "flfa": AXES["flfa"],
        "beta": {str(b): {"dirichlet-beta": b} for b in (0.3, 0.1)},
        "epochs": {str(n): {"local-epochs": n} for n in (5, 15)},
    }
    results = make_grid(tmp_path, axes, table="table1", seeds=(0,))
    finish_all(results)
    text = render_tables(results, "markdown")
    rows = first_table(text)
    assert rows["FedAvg, beta 0.3, epochs 5"] == ["**50.00** · paper 59.26"]
    assert rows["difference to FedAvg, beta 0.3, epochs 5"][0].endswith("paper +2.47")
    for beta, epochs in ((0.3, 15), (0.1, 5), (0.1, 15)):
        for method in ("FedAvg", "FedAvg + FLFA", "difference to FedAvg"):
            label = f"{method}, beta {beta}, epochs {epochs}"
            assert "paper" not in rows[label][0]
    assert "than the paper's: local-epochs, dirichlet-beta." in text


@pytest.mark.parametrize("keys", [{}, {"num-server-rounds": 20}, {"nodes": 10}])
def test_a_smaller_run_has_no_published_number(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    axes = AXES | {"method": {"fedavg": {"algorithm": "fedavg"} | keys}}
    text = render_tables(make_grid(tmp_path, axes, table="table1"), "markdown")
    assert ("paper 59.26" in text) == (not keys)
    assert (f"than the paper's: {next(iter(keys), '')}." in text) == bool(keys)


def test_runs_that_did_not_converge_in_the_paper(tmp_path: Path) -> None:
    axes = AXES | {"method": {"feddyn": {"algorithm": "feddyn"}}}
    text = render_tables(make_grid(tmp_path, axes, table="feddyn"), "markdown")
    rows = first_table(text)
    assert rows["FedDyn"] == ["*not run* · paper 71.95", "*not run* · paper -"]
    assert rows["difference to FedDyn"][1] == "no pair"
    assert "paper -: it did not converge there." in text


def test_equal_means_are_both_bold(results: GridResults) -> None:
    finish_all(results, auc=0.9)
    text = render_tables(results, "markdown")
    for method in ("FedAvg", "FedAvg + FLFA"):
        assert first_table(text)[method][0].startswith("**50.00")
    auc = text.partition("\n## Macro-AUC: mean of the last 10 % of the rounds, in %\n")
    assert "| MOON + FLFA | **90.00 ± 0.00** | **90.00 ± 0.00** |" in auc[2]


def test_csv_has_unrounded_numbers(results: GridResults) -> None:
    finish_all(results, score)
    text = render_tables(results, "csv")
    assert "\r" not in text
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 2 * 4 * 2  # accuracy and time
    (line,) = (
        line
        for line in lines
        if (line["quantity"], line["dataset"]) == ("score", "pathmnist")
        and (line["method"], line["flfa"]) == ("fedavg", "lowest")
    )
    assert float(line["mean"]) == pytest.approx(56)
    assert float(line["deviation"]) == pytest.approx(3)
    assert float(line["difference"]) == pytest.approx(4)
    assert float(line["interval-low"]) == pytest.approx(4 - 2.4842, abs=1e-4)
    assert float(line["interval-high"]) == pytest.approx(4 + 2.4842, abs=1e-4)
    assert (line["seeds"], line["seeds-asked"], line["pairs"]) == ("3", "3", "3")
    assert float(line["paper"]) == 67.90
    assert float(line["paper-difference"]) == pytest.approx(1.86)


def test_csv_counts_seeds(results: GridResults) -> None:
    finish_cell(
        results, find_cell(results, 0, **FEDAVG), None, settings={"momentum": 0.1}
    )
    fail_cell(results, find_cell(results, 1, **FEDAVG), "out of memory")
    line = next(csv.DictReader(io.StringIO(render_tables(results, "csv"))))
    counts = {key: value for key, value in line.items() if key.startswith("seeds")}
    assert counts == {
        "seeds": "0",
        "seeds-asked": "3",
        "seeds-failed": "1",
        "seeds-not-run": "1",
        "seeds-without-number": "1",
        "seeds-other-settings": "1",
    }


def test_latex(results: GridResults) -> None:
    finish_all(results, score)
    text = render_tables(results, "latex")
    assert r"FedAvg & 62.00 $\pm$ 2.00 {\scriptsize paper 59.26} & " in text
    assert r"FedAvg + FLFA & \textbf{66.00 $\pm$ 3.00} {\scriptsize paper" in text
    assert r"\quad\emph{difference to MOON} & $-$1.00 [$-$3.48, +1.48]" in text
    assert r"last 10 \% of the rounds" in text
    for name in ("table*", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 2


def test_latex_rules_separate_groups(results: GridResults) -> None:
    finish_all(results, score)
    tabular = render_tables(results, "latex").split(r"\end{tabular}")[0].splitlines()
    first_words = [line.split(" & ")[0] for line in tabular]
    assert first_words[first_words.index(r"\toprule") :] == [
        r"\toprule",
        "",
        r"\midrule",
        "FedAvg",
        "FedAvg + FLFA",
        r"\quad\emph{difference to FedAvg}",
        r"\midrule",
        "MOON",
        "MOON + FLFA",
        r"\quad\emph{difference to MOON}",
        r"\midrule",
        r"\quad\emph{average gain of FLFA}",
        r"\bottomrule",
    ]


def test_names_are_escaped(tmp_path: Path) -> None:
    axes = AXES | {"method": {"a_b|c": {}}}
    results = make_grid(tmp_path, axes, title="50 % of <b> & {x}_1")
    assert r"50 % of \<b\> & {x}\_1" in render_tables(results, "markdown")
    assert r"| a\_b\|c | " in render_tables(results, "markdown")
    assert r"50 \% of <b> \& \{x\}\_1" in render_tables(results, "latex")
