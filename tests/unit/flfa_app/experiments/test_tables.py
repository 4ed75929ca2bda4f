"""Tables of made-up runs; every expected number is computed by hand.

t(97.5 %, 2) is 4.3027: three differences with deviation s have half the interval
2.4842 s.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from flfa_app.errors import ConfigError
from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.store import Cell, GridResults, read_results
from tests.results_folder import AXES, cell_of, fail, finish, finish_all, make_grid

# By method, rule and seed; pathmnist has 0.1 less.
SCORES = {
    ("fedavg", "none"): (0.60, 0.62, 0.64),  # 62 ± 2
    ("fedavg", "lowest"): (0.63, 0.66, 0.69),  # 66 ± 3; differences 3, 4, 5
    ("moon", "none"): (0.70, 0.70, 0.70),  # 70 ± 0
    ("moon", "lowest"): (0.70, 0.69, 0.68),  # 69 ± 1; differences 0, -1, -2
}


def score(cell: Cell) -> float:
    value = SCORES[cell.axes["method"], cell.axes["flfa"]][cell.seed]
    return value - 0.1 * (cell.axes["dataset"] == "pathmnist")


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path, table="table1")


def rows_of(text: str, table: int = 0) -> dict[str, list[str]]:
    """Read a Markdown table: label -> places."""
    block = text.split("\n## ")[table + 1]
    found = {}
    for line in block.splitlines():
        if line.startswith("| "):
            label, *places = (place.strip() for place in line.strip("| ").split(" | "))
            found[label.strip("|* ")] = places
    return found


def test_a_whole_table(results: GridResults) -> None:
    finish_all(results, score)
    text = render_tables(results, "markdown").split("\n## ")[1]
    table = [line for line in text.splitlines() if line.startswith("|")]
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


def test_the_folder_on_disk_gives_the_same(
    results: GridResults, tmp_path: Path
) -> None:
    finish_all(results, score)
    for format in ("markdown", "csv", "latex"):
        assert render_tables(read_results(tmp_path), format) == render_tables(
            results, format
        )


def test_legend_has_only_what_occurs(results: GridResults) -> None:
    finish_all(results, score)
    text = render_tables(results, "markdown")
    assert "±: standard deviation" in text
    for absent in (
        "not run",
        "failed",
        "†",
        "no number",
        "no pair",
        "did not converge",
    ):
        assert absent not in text


def test_marks_of_what_is_not_there(results: GridResults) -> None:
    """Of FedAvg one seed has failed and one is not run; of MOON nothing is right."""
    base = {"dataset": "bloodmnist", "method": "fedavg", "flfa": "none"}
    finish(results, cell_of(results, 0, **base), 0.5)
    fail(results, cell_of(results, 1, **base), "out of memory")
    for seed in (0, 1, 2):
        cell = cell_of(results, seed, **base | {"flfa": "lowest"})
        finish(results, cell, 0.5 + seed / 10, settings={"learning-rate": 9.0})
    moon = base | {"method": "moon"}
    fail(results, cell_of(results, 0, **moon), "out of memory")
    for seed in (0, 1, 2):
        finish(results, cell_of(results, seed, **moon | {"flfa": "lowest"}), None)
    text = render_tables(results, "markdown")
    rows = {label: places[0] for label, places in rows_of(text).items()}
    assert rows["FedAvg"] == "50.00 (1 of 3 seeds, 1 failed) · paper 59.26"
    assert rows["FedAvg + FLFA"] == "**60.00 ± 10.00** (†) · paper 61.73"
    assert rows["difference to FedAvg"] == "+0.00 (†) (1 pair) · paper +2.47"
    assert rows["MOON"] == "*failed* · paper 60.69"
    assert rows["MOON + FLFA"] == "*no number* · paper 61.86"
    assert rows["difference to MOON"] == "no pair · paper +1.17"
    assert rows["average gain of FLFA"] == "+0.00 (1 of 2 methods)"
    assert rows_of(text)["MOON"][1] == "*not run* · paper 66.69"
    for mark in (
        "not run:",
        "failed:",
        "no number:",
        "k of n seeds",
        "† a run",
        "no pair:",
    ):
        assert mark in text


def test_an_old_result_does_not_hide_a_failure(results: GridResults) -> None:
    """The settings were changed, and the attempt with the new ones has failed."""
    base = {"dataset": "bloodmnist", "method": "fedavg", "flfa": "none"}
    for seed in (0, 1, 2):
        cell = cell_of(results, seed, **base)
        finish(results, cell, 0.5, settings={"learning-rate": 9.0})
        fail(results, cell, "out of memory")
    text = render_tables(results, "markdown")
    assert rows_of(text)["FedAvg"][0] == "*failed* · paper 59.26"
    assert "†" not in text


def test_the_papers_number_stands_only_beside_its_settings(tmp_path: Path) -> None:
    """Table 1 has Dirichlet 0.3 and 5 epochs: of four combinations that is one."""
    axes = {
        "dataset": {"bloodmnist": {"dataset": "bloodmnist"}},
        "method": {"fedavg": {"algorithm": "fedavg"}},
        "flfa": AXES["flfa"],
        "beta": {str(b): {"dirichlet-beta": b} for b in (0.3, 0.1)},
        "epochs": {str(n): {"local-epochs": n} for n in (5, 15)},
    }
    results = make_grid(tmp_path, axes, table="table1", seeds=(0,))
    finish_all(results, lambda cell: 0.5)
    text = render_tables(results, "markdown")
    rows = rows_of(text)
    assert rows["FedAvg, beta 0.3, epochs 5"] == ["**50.00** · paper 59.26"]
    assert rows["difference to FedAvg, beta 0.3, epochs 5"][0].endswith("paper +2.47")
    for beta, epochs in ((0.3, 15), (0.1, 5), (0.1, 15)):
        for method in ("FedAvg", "FedAvg + FLFA", "difference to FedAvg"):
            label = f"{method}, beta {beta}, epochs {epochs}"
            assert "paper" not in rows[label][0]
    assert "than the paper's: local-epochs, dirichlet-beta." in text


@pytest.mark.parametrize(
    ("keys", "shown"),
    [({}, True), ({"num-server-rounds": 20}, False), ({"nodes": 10}, False)],
)
def test_a_smaller_run_is_not_the_papers(
    tmp_path: Path, keys: dict[str, int], shown: bool
) -> None:
    axes = AXES | {"method": {"fedavg": {"algorithm": "fedavg"} | keys}}
    text = render_tables(make_grid(tmp_path, axes, table="table1"), "markdown")
    assert ("paper 59.26" in text) == shown
    assert (f"than the paper's: {next(iter(keys), '')}." in text) != shown


def test_what_did_not_converge_in_the_paper(tmp_path: Path) -> None:
    axes = AXES | {"method": {"feddyn": {"algorithm": "feddyn"}}}
    text = render_tables(make_grid(tmp_path, axes, table="feddyn"), "markdown")
    assert rows_of(text)["FedDyn"] == ["*not run* · paper 71.95", "*not run* · paper -"]
    assert rows_of(text)["difference to FedDyn"][1] == "no pair"
    assert "paper -: it did not converge there." in text


def test_equal_means_are_both_bold(results: GridResults) -> None:
    finish_all(results, lambda cell: 0.5)
    rows = rows_of(render_tables(results, "markdown"))
    assert rows["FedAvg"][0].startswith("**50.00")
    assert rows["FedAvg + FLFA"][0].startswith("**50.00")


def test_relative_time_and_auc(results: GridResults) -> None:
    """MOON's rounds train 3 s, FedAvg's 2 s: 1.5 times as long; evaluation aside."""
    for cell in results.cells:
        seconds = 2.0 if cell.axes["method"] == "fedavg" else 3.0
        finish(results, cell, score(cell), seconds=seconds, auc=0.9)
    text = render_tables(results, "markdown")
    titles = re.findall(r"^## (.*)", text, flags=re.M)
    assert [title.partition(",")[0] for title in titles[:2]] == [
        "Accuracy: mean of the last 10 % of the rounds",
        "Macro-AUC: mean of the last 10 % of the rounds",
    ]
    assert titles[2] == "Time a round, relative to FedAvg without FLFA"
    assert rows_of(text, 1)["MOON + FLFA"] == ["**90.00 ± 0.00**", "**90.00 ± 0.00**"]
    assert rows_of(text, 2)["FedAvg"][0] == "1.00 ± 0.00 · paper 1.00"
    assert rows_of(text, 2)["MOON + FLFA"][0] == "1.50 ± 0.00 · paper 1.69"
    assert "difference to MOON" not in rows_of(text, 2)


def test_no_time_without_its_reference(results: GridResults) -> None:
    for cell in results.cells:
        if cell.axes["method"] == "moon":
            finish(results, cell, score(cell))
    assert "Time a round" not in render_tables(results, "markdown")


def test_csv_has_numbers_in_full(results: GridResults) -> None:
    finish_all(results, score)
    lines = list(csv.DictReader(io.StringIO(render_tables(results, "csv"))))
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
    assert (line["seeds"], line["seeds-asked"], line["pairs"]) == ("3", "3", "3")
    assert float(line["paper"]) == 67.90
    assert float(line["paper-difference"]) == pytest.approx(1.86)


def test_latex(results: GridResults) -> None:
    finish_all(results, score)
    text = render_tables(results, "latex")
    assert r"FedAvg & 62.00 $\pm$ 2.00 {\scriptsize paper 59.26} & " in text
    assert r"FedAvg + FLFA & \textbf{66.00 $\pm$ 3.00} {\scriptsize paper" in text
    assert r"\quad\emph{difference to MOON} & $-$1.00 [$-$3.48, +1.48]" in text
    assert r"last 10 \% of the rounds" in text
    for name in ("table*", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 2


def test_names_are_escaped(tmp_path: Path) -> None:
    axes = AXES | {"method": {"a_b|c": {}}}
    results = make_grid(tmp_path, axes, title="50 % of <b> & {x}_1")
    assert r"50 % of \<b\> & {x}\_1" in render_tables(results, "markdown")
    assert r"| a\_b\|c | " in render_tables(results, "markdown")
    assert r"50 \% of <b> \& \{x\}\_1" in render_tables(results, "latex")


def test_an_unknown_format_is_named(results: GridResults) -> None:
    with pytest.raises(ConfigError, match=r"'html'.*markdown, csv, latex"):
        render_tables(results, "html")
