"""Tables of invented runs; every expected number is computed by hand.

t(97.5 %, 2) is 4.3027, so half the interval of three differences with deviation s is
4.3027 s / √3 = 2.4842 s.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

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
FEDAVG_FLFA = FEDAVG | {"flfa": "lowest"}
MOON = FEDAVG | {"method": "moon"}
OTHER = {"learning-rate": 9.0}


def score(cell: Cell) -> float:
    value = SCORES[cell.axes["method"], cell.axes["flfa"]][cell.seed]
    return value - 0.1 * (cell.axes["dataset"] == "pathmnist")


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path, table="table1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> GridResults:
    results = make_grid(tmp_path_factory.mktemp("finished"), table="table1")
    finish_all(results, score)
    return results


def first_table(text: str) -> dict[str, list[str]]:
    """Read the first Markdown table: label -> the text of each column."""
    rows = {}
    for line in text.split("\n## ")[1].splitlines():
        if line.startswith("| "):
            label, *texts = (text.strip() for text in line.strip("| ").split(" | "))
            rows[label.strip("|* ")] = texts
    return rows


def test_markdown(finished: GridResults) -> None:
    text = render_tables(finished, "markdown")
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


def test_csv_has_unrounded_numbers(finished: GridResults) -> None:
    text = render_tables(finished, "csv")
    assert "\r" not in text
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 2 * 4 * 2  # accuracy and time
    keys = ("quantity", "dataset", "method", "flfa")
    by_keys = {tuple(line[key] for key in keys): line for line in lines}
    line = by_keys["score", "pathmnist", "fedavg", "lowest"]
    numbers = {
        "mean": 56,
        "deviation": 3,
        "difference": 4,
        "interval-low": 4 - 2.4842,
        "interval-high": 4 + 2.4842,
        "paper": 67.90,
        "paper-difference": 1.86,
    }
    written = {key: float(line[key]) for key in numbers}
    assert written == pytest.approx(numbers, abs=1e-4)
    assert (line["seeds"], line["seeds-asked"], line["pairs"]) == ("3", "3", "3")


def test_latex(finished: GridResults) -> None:
    text = render_tables(finished, "latex")
    assert r"FedAvg & 62.00 $\pm$ 2.00 {\scriptsize paper 59.26} & " in text
    assert r"FedAvg + FLFA & \textbf{66.00 $\pm$ 3.00} {\scriptsize paper" in text
    assert r"\quad\emph{difference to MOON} & $-$1.00 [$-$3.48, +1.48]" in text
    assert r"last 10 \% of the rounds" in text
    for name in ("table*", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 2
    # Rules separate the groups.
    tabular = text.split(r"\end{tabular}")[0].splitlines()
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


def test_incomplete_results_are_marked(results: GridResults) -> None:
    """FedAvg lacks a failed seed and one that was not run; MOON has no number."""
    finish_cell(results, find_cell(results, 0, **FEDAVG), 0.5)
    fail_cell(results, find_cell(results, 1, **FEDAVG), "out of memory")
    for seed in (0, 1, 2):
        cell = find_cell(results, seed, **FEDAVG_FLFA)
        finish_cell(results, cell, 0.5 + seed / 10, settings=OTHER)
        cell = find_cell(results, seed, **MOON | {"flfa": "lowest"})
        finish_cell(results, cell, None)
    # The attempt with new settings failed: an old result does not hide it.
    failed = find_cell(results, 0, **MOON)
    finish_cell(results, failed, 0.5, settings=OTHER)
    fail_cell(results, failed, "out of memory")
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
    lines = csv.DictReader(io.StringIO(render_tables(results, "csv")))
    names = ("asked", "failed", "not-run", "without-number", "other-settings")
    counts = [
        [int(line[f"seeds-{name}"]) for name in names]
        for line in lines
        if line["dataset"] == "bloodmnist"
    ]
    assert counts[:4] == [
        [3, 1, 1, 0, 0],
        [3, 0, 0, 0, 3],
        [3, 1, 2, 0, 0],
        [3, 0, 0, 3, 0],
    ]


def test_other_settings_of_the_baseline_mark_the_difference(
    results: GridResults,
) -> None:
    """Two of three seeds have a pair."""
    for seed in (0, 1, 2):
        finish_cell(results, find_cell(results, seed, **FEDAVG_FLFA), 0.6)
        if seed < 2:
            finish_cell(
                results, find_cell(results, seed, **FEDAVG), 0.5, settings=OTHER
            )
    rows = first_table(render_tables(results, "markdown"))
    assert rows["FedAvg"][0] == "50.00 ± 0.00 (†) (2 of 3 seeds) · paper 59.26"
    assert rows["FedAvg + FLFA"][0] == "**60.00 ± 0.00** · paper 61.73"
    difference = "+10.00 [+10.00, +10.00] (†) (2 of 3 pairs) · paper +2.47"
    assert rows["difference to FedAvg"][0] == difference


def test_published_numbers_need_the_settings_of_the_paper(tmp_path: Path) -> None:
    changes = {"dirichlet-beta": 0.1, "local-epochs": 15}
    changes |= {"num-server-rounds": 20, "nodes": 10}
    axes = {
        "dataset": {"bloodmnist": {"dataset": "bloodmnist"}},
        "method": {"fedavg": {"algorithm": "fedavg"}},
        "flfa": AXES["flfa"],
        "change": {"no": {}} | {key: {key: value} for key, value in changes.items()},
    }
    results = make_grid(tmp_path, axes, table="table1", seeds=(0,))
    finish_all(results)
    text = render_tables(results, "markdown")
    rows = first_table(text)
    assert rows["FedAvg, change no"] == ["**50.00** · paper 59.26"]
    assert rows["difference to FedAvg, change no"][0].endswith("paper +2.47")
    for label in ("FedAvg", "FedAvg + FLFA", "difference to FedAvg"):
        for key in changes:
            assert "paper" not in rows[f"{label}, change {key}"][0]
    assert f"than the paper's: {', '.join(changes)}." in text


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


def test_names_are_escaped(tmp_path: Path) -> None:
    axes = AXES | {"method": {"a_b|c": {}}}
    results = make_grid(tmp_path, axes, title="50 % of <b> & {x}_1")
    assert r"50 % of \<b\> & {x}\_1" in render_tables(results, "markdown")
    assert r"| a\_b\|c | " in render_tables(results, "markdown")
    assert r"50 \% of <b> \& \{x\}\_1" in render_tables(results, "latex")
