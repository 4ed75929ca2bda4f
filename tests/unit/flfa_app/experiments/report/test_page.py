"""The report as text; ``tests/browser`` checks it in a browser."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flfa_app.experiments.report.page import render_report
from flfa_app.experiments.store import GridResults
from tests.results_folder import (
    AXES,
    fail_cell,
    find_cell,
    finish_all,
    finish_cell,
    make_grid,
)

TODAY = date(2026, 1, 2)
VOID_TAGS = {"meta", "br", "input", "path", "rect", "image"}
NASTY = "<script>alert('&\"')</script>"


class Reader(HTMLParser):
    """Collects tags and text; checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path, table="table1")


def test_a_finished_grid(results: GridResults) -> None:
    finish_all(results, auc=0.9)
    text = render_report(results, TODAY)
    assert "2026-01-02 · 24 runs: 24 finished, 0 failed, 0 not run" in text
    assert "commit c0ffee000000<" in text
    assert "python 3.11.2, flwr 1.41.0" in text
    assert "No finished run" not in text
    # For each of two data sets: two methods, or their two rows with FLFA.
    reader = Reader(text)
    labels = [str(of["aria-label"]) for tag, of in reader.tags if tag == "svg"]
    names = ["accuracy", "auc", "drift", "selected", "scores", "cosines"]
    counts = Counter(re.split(r"\W", label)[0] for label in labels)
    assert counts == dict.fromkeys(names, 4)
    # Nothing is loaded from elsewhere.
    assert not re.search(r"https?://|@import", text)
    for tag, attributes in reader.tags:
        for name in ("src", "href"):
            assert str(attributes.get(name, "data:")).startswith("data:"), tag
        assert tag not in ("link", "iframe", "object", "embed")


def test_runs_of_different_code_are_counted(results: GridResults) -> None:
    finish_all(results)
    file = results.run_directory(results.cells[0]) / "config.json"
    config = file.read_text().replace("c0ffee" + 34 * "0", 40 * "1" + "-dirty")
    file.write_text(config.replace("1.41.0", "1.42.0"))
    text = render_report(results, TODAY)
    assert "Code: commit 111111111111-dirty (1 runs)<br>" in text
    assert "Code: commit c0ffee000000 (23 runs)<br>" in text
    assert "Made with python 3.11.2, flwr 1.42.0 (1 runs)<br>" in text


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    axes = AXES | {"method": {NASTY: {}, "moon": {"algorithm": "moon"}}}
    results = make_grid(tmp_path, axes, title=NASTY)
    # An id is a file name, in which a slash would be a folder.
    cells = [replace(cell, id=f"cell{i}") for i, cell in enumerate(results.cells)]
    results = GridResults(tmp_path, results.spec, cells)
    finish_all(results)
    failed = make_grid(tmp_path / "other", title="x")
    fail_cell(failed, failed.cells[0], NASTY)
    for text in (render_report(results, TODAY), render_report(failed, TODAY)):
        reader = Reader(text)
        assert [tag for tag, _ in reader.tags].count("script") == 1
        assert NASTY not in text
        assert NASTY in " ".join(reader.texts)


def test_no_run_is_finished(results: GridResults) -> None:
    text = render_report(results, TODAY)
    Reader(text)
    assert "24 runs: 0 finished, 0 failed, 24 not run" in text
    assert text.count("No finished run has what this needs.") == 5
    assert "not run: no seed is finished yet." in text


def test_drift_reduction_of_pairs(results: GridResults) -> None:
    """BP drifts by 3 and FLFA by 1: a reduction of 2. FLFA's seed 1 has no pair."""
    axes = {"dataset": "bloodmnist", "method": "fedavg"}
    finish_cell(results, find_cell(results, 0, flfa="none", **axes), drift=3.0)
    finish_cell(results, find_cell(results, 0, flfa="lowest", **axes), drift=1.0)
    finish_cell(results, find_cell(results, 1, flfa="lowest", **axes), drift=99.0)
    text = render_report(results, TODAY)
    assert "FedAvg + FLFA: above 0 in 100 % of the rounds" in text
    (chart,) = re.findall(r'aria-label="drift reduction.*?</svg>', text)
    assert ">2</text>" in chart
    assert ">98</text>" not in chart


def test_problems_and_settings(results: GridResults) -> None:
    first, second, *_ = results.cells
    fail_cell(results, first, "out of memory")
    finish_cell(results, second, settings={"learning-rate": 9.0})
    reader = Reader(render_report(results, TODAY))
    text = reader.text
    assert f"Runs that have failed {first.id} out of memory" in text
    assert f"(marked †) {second.id} learning-rate was 9.0, is 0.01" in text
    _, _, common = text.partition("Settings of all runs ")
    assert common.startswith("nodes 100 ")
    assert " model mobilenet_v2 " in common
    assert " algorithm " not in common  # differs between the runs
    # Rules separate the groups of rows.
    classes = [of["class"] for tag, of in reader.tags if tag == "tr" and of]
    rows = ["value", "value", "difference", "value first", "value", "difference"]
    assert classes[:7] == [*rows, "average first"]


def test_runs_of_an_older_version_have_no_auc(results: GridResults) -> None:
    finish_all(results)
    for cell in results.cells:
        file = results.run_directory(cell) / "metrics.jsonl"
        file.write_text(re.sub(r'"auc": [\d.]+, ', "", file.read_text()))
    text = render_report(results, TODAY)
    assert "Accuracy by round" in text
    assert "Macro-AUC" not in text
