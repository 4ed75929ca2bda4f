"""Tables and report of real runs: they find all that they read in the files."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from flfa_app.experiments.report.page import render_report
from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.store import GridResults
from flfa_app.results.metrics import METRICS
from tests.federation import QUICK, run_app
from tests.results_folder import AXES, make_grid

FIGURES = ("accuracy by", "auc by", "drift red", "selected", "scores by", "cosines")


def test_real_runs_have_all_that_is_shown(tmp_path: Path) -> None:
    axes = {
        "dataset": {"digits": {"dataset": "digits", "model": "cnn", **QUICK}},
        "method": {"fedavg": {"algorithm": "fedavg", "nodes": 4}},
        "flfa": AXES["flfa"],
    }
    results: GridResults = make_grid(tmp_path / "out", axes, seeds=(0,))
    scores = {}
    for cell in results.cells:
        runs = tmp_path / "runs"
        run = run_app(runs, {**cell.run_config, "output-dir": str(runs)})
        run.rename(results.run_directory(cell))
        assert results.setting_differences(cell) == []
        summary = results.summary(cell)
        assert summary is not None
        scores[cell.axes["flfa"]] = 100 * summary["score"]
        # Everything else in a summary can be the metric of a grid.
        numbers = {key for key, spec in METRICS.items() if spec.is_number}
        assert numbers == summary.keys() - {"stopped-early"}
    text = render_tables(results, "markdown")
    assert f"{scores['none']:.2f}" in text
    assert f"{scores['lowest'] - scores['none']:+.2f} (1 pair)" in text
    for heading in ("Accuracy", "Macro-AUC", "Time a round"):
        assert f"\n## {heading}" in text
    page = render_report(results, date(2026, 1, 2))
    assert "No finished run" not in page
    for figure in FIGURES:
        assert page.count(f'aria-label="{figure}') == 1, figure
