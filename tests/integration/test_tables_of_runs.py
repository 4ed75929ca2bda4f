"""Tables and report of real runs: the files a run leaves are those they read."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from flfa_app.experiments.report.page import render_report
from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.store import Cell, GridResults
from tests.federation import QUICK, run_app
from tests.results_folder import AXES, make_grid


def test_real_runs_have_all_that_is_shown(tmp_path: Path) -> None:
    axes = {
        "dataset": {"digits": {"dataset": "digits"}},
        "method": {"fedavg": {"algorithm": "fedavg"}},
        "flfa": AXES["flfa"],
    }
    made = make_grid(tmp_path / "out", axes, seeds=(0,))
    cells = [
        Cell(c.id, c.axes, c.seed, 4, c.run_config | QUICK | {"model": "cnn"})
        for c in made.cells
    ]
    results = GridResults(made.folder, made.spec, cells)
    scores = {}
    for cell in cells:
        run = run_app(
            tmp_path / "runs", cell.run_config | {"output-dir": str(tmp_path / "runs")}
        )
        run.rename(results.run_directory(cell))
        assert results.settings_match(cell)
        summary = results.summary(cell)
        assert summary is not None
        scores[cell.axes["flfa"]] = 100 * summary["score"]
    text = render_tables(results, "markdown")
    assert f"{scores['none']:.2f}" in text
    assert f"{scores['lowest'] - scores['none']:+.2f} (1 pair)" in text
    for heading in ("Accuracy", "Macro-AUC", "Time a round"):
        assert f"\n## {heading}" in text
    page = render_report(results, date(2026, 1, 2))
    assert "No finished run" not in page
    pictures = (
        "accuracy by",
        "auc by",
        "drift red",
        "selected",
        "scores by",
        "cosines",
    )
    for picture in pictures:
        assert page.count(f'aria-label="{picture}') == 1, picture
