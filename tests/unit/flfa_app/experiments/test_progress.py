from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flfa_app.experiments.progress import GridProgress, format_duration
from flfa_app.results.records import Evaluation, RoundRecord, Timing
from tests.results_folder import make_grid


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7, "0:07 min"), (3725, "62:05 min"), (7200, "2.0 hours"), (432000, "5.0 days")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_lines_without_a_terminal(tmp_path: Path) -> None:
    output = io.StringIO()
    first, second, *_ = cells = make_grid(tmp_path).cells
    progress = GridProgress(cells, Console(file=output, width=120))
    with progress.bar:
        progress.show_start(first)
        progress.show_round(first, RoundRecord(15))
        progress.show_end(first, "")
        progress.show_end(second, "ValueError: no")
    lines = output.getvalue().splitlines()
    assert lines[0].startswith(f"1/24 {first.id}  (left 0:0")
    assert lines[1].startswith(f"2/24 {second.id} has failed: ValueError: no  (left ")
    assert len(lines) == 2


def test_the_bar_shows_the_latest_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 6 s, 3 of 30 rounds of one of 24 cells are done: 0.1 cells a minute."""
    monkeypatch.setattr("time.monotonic", iter([0.0, 6.0, 9.0]).__next__)
    output = io.StringIO()
    first, *_ = cells = make_grid(tmp_path).cells
    progress = GridProgress(cells, Console(file=output, width=200))
    evaluation = Evaluation(0.05)
    timing = Timing(1.0, 0.25, 0.25)
    record = RoundRecord(3, evaluation, 0.125, ("conv1", "fc"), timing=timing)
    progress.show_round(first, record)
    text = f"{first.id}: round  3/30  accuracy  5.00 %  drift 0.125  FA: conv1, fc"
    (task,) = progress.bar.tasks
    assert (task.description, task.fields["left"]) == (f"{text}  1.5 s", "23:54 min")
    progress.show_round(first, RoundRecord(4, drift=0.5, timing=timing))
    text = f"{first.id}: round  4/30  accuracy     - %  drift 0.500  FA: -  1.5 s"
    assert task.description == text
