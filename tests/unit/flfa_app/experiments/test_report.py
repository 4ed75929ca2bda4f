"""The report as text; what a browser makes of it is in ``tests/browser``."""

from __future__ import annotations

import re
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flfa_app.experiments.report.page import render_report, write_report
from flfa_app.experiments.store import GridResults
from tests.results_folder import AXES, cell_of, fail, finish, finish_all, make_grid

TODAY = date(2026, 1, 2)
NO_END = {"meta", "br", "input", "path", "rect", "image"}
NASTY = "<script>alert('&\"')</script>"


class Reader(HTMLParser):
    """Checks that every element is closed in order; collects tags and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in NO_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def score(cell: object) -> float:
    return 0.5


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path, table="table1")


def figures(reader: Reader) -> list[str]:
    return [str(of["aria-label"]) for tag, of in reader.tags if tag == "svg"]


def test_a_finished_grid(results: GridResults) -> None:
    finish_all(results, score, auc=0.9)
    text = render_report(results, TODAY)
    reader = Reader(text)
    assert "2026-01-02 · 24 runs: 24 finished, 0 failed, 0 not run" in text
    assert "commit c0ffee000000<" in text
    assert "python 3.11.2, flwr 1.41.0" in text
    # Two data sets, each: two methods, and the two with FLFA.
    counts = {
        "accuracy by round": 4,
        "auc by round": 4,
        "drift reduction": 4,
        "selected blocks": 4,
        "scores by layer": 4,
        "cosines": 4,
    }
    found = figures(reader)
    for start, count in counts.items():
        assert sum(label.startswith(start) for label in found) == count, start
    assert len(found) == sum(counts.values())
    assert "No finished run" not in text


def test_nothing_is_loaded_from_elsewhere(results: GridResults) -> None:
    finish_all(results, score)
    text = render_report(results, TODAY)
    assert not re.search(r"https?://", text)
    assert "@import" not in text
    for tag, attributes in Reader(text).tags:
        for name in ("src", "href"):
            assert str(attributes.get(name, "data:")).startswith("data:"), tag
        assert tag not in ("link", "iframe", "object", "embed")


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    axes = AXES | {"method": {NASTY: {}, "moon": {"algorithm": "moon"}}}
    results = make_grid(tmp_path, axes, title=NASTY)
    # An id is a file name: a slash in it would be a folder.
    safe = [
        type(cell)(f"cell{i}", cell.axes, cell.seed, cell.nodes, cell.run_config)
        for i, cell in enumerate(results.cells)
    ]
    results = GridResults(tmp_path, results.spec, safe)
    finish_all(results, score)
    fail_in = make_grid(tmp_path / "other", title="x")
    fail(fail_in, fail_in.cells[0], NASTY)
    for text in (render_report(results, TODAY), render_report(fail_in, TODAY)):
        reader = Reader(text)
        assert [tag for tag, _ in reader.tags].count("script") == 1
        assert NASTY not in text
        assert NASTY in " ".join(reader.text)


def test_nothing_has_run_yet(results: GridResults) -> None:
    text = render_report(results, TODAY)
    Reader(text)
    assert "24 runs: 0 finished, 0 failed, 24 not run" in text
    assert text.count("No finished run has what this needs.") == 5
    assert "not run: no seed is finished yet." in text


def test_drift_reduction_is_that_of_pairs(results: GridResults) -> None:
    """BP drifts by 3, FLFA by 1: 2 less, in all rounds; seed 1 has no partner."""
    base = {"dataset": "bloodmnist", "method": "fedavg"}
    finish(results, cell_of(results, 0, flfa="none", **base), 0.5, drift=3.0)
    finish(results, cell_of(results, 0, flfa="lowest", **base), 0.5, drift=1.0)
    finish(results, cell_of(results, 1, flfa="lowest", **base), 0.5, drift=99.0)
    text = render_report(results, TODAY)
    assert "FedAvg + FLFA: above 0 in 100 % of the rounds" in text
    (labels,) = re.findall(r'aria-label="drift reduction.*?</svg>', text)
    assert ">2</text>" in labels
    assert ">98</text>" not in labels


def test_problems_are_named(results: GridResults) -> None:
    first, second, *_ = results.cells
    fail(results, first, "out of memory")
    finish(results, second, 0.5, settings={"learning-rate": 9.0})
    text = " ".join(Reader(render_report(results, TODAY)).text)
    assert f"Runs that have failed \n {first.id} out of memory" in text
    assert "learning-rate was 9.0, is 0.01" in text


def test_settings_of_all_runs(results: GridResults) -> None:
    text = render_report(results, TODAY)
    assert '<th scope="row">model</th><td>mobilenet_v2</td>' in text
    # What differs between runs is not a setting of all.
    assert '<th scope="row">algorithm</th>' not in text


def test_runs_of_an_older_version_have_no_auc(results: GridResults) -> None:
    finish_all(results, score)
    for cell in results.cells:
        file = results.run_directory(cell) / "metrics.jsonl"
        file.write_text(re.sub(r'"auc": [\d.]+, ', "", file.read_text()))
    text = render_report(results, TODAY)
    assert "Accuracy by round" in text
    assert "Macro-AUC" not in text


def test_it_is_written_where_it_is_asked_for(
    results: GridResults, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(results, path)
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
