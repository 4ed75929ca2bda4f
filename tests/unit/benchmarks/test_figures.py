"""Figures, their goals, and the table of all benchmarks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import server_memory
from benchmarks.figures import Figure, markdown, missed, of_measurements, publish


@pytest.mark.parametrize(
    ("value", "goal", "reached"),
    [
        (1.02, "<= 1.02", True),
        (1.021, "<= 1.02", False),
        (1.25, ">= 1.25", True),
        (1.24, ">= 1.25", False),
        (9.0, "", None),
    ],
)
def test_a_goal_is_a_bound(value: float, goal: str, reached: bool | None) -> None:
    figure = Figure("x", value, (value, value), goal)
    assert figure.reached is reached
    assert missed([figure]) == (reached is False)


def test_the_median_and_the_quartiles() -> None:
    """Of 1, 2, 3, 4, 5: 3, and 2 and 4."""
    figure = of_measurements("x", [5, 1, 4, 2, 3], ">= 1")
    assert (figure.value, figure.quartiles) == (3, (2, 4))


def test_a_missed_goal_is_marked_and_an_error() -> None:
    good = Figure("good", 1.5, (1.25, 2.0), ">= 1.1")
    bad = Figure("bad", 61.0, (60.5, 62.0), "<= 60", "s")
    assert publish([good], None) == 0
    assert publish([good, bad], None) == 1
    lines = markdown([good, bad, Figure("told", 2.0, (2.0, 2.0))]).splitlines()
    assert lines[2:] == [
        "| good | ≥ 1.1 | 1.500 | 1.25 to 2 |",
        "| bad | ≤ 60 s **missed** | 61.000 s | 60.5 to 62 |",
        "| told | reported | 2.000 | 2 to 2 |",
    ]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started: each writes a figure, but for ``scale``."""
    started: list[list[str]] = []

    def run(command: list[str], **how: Any) -> None:
        started.append(command)
        name = command[2].removeprefix("benchmarks.")
        if name != "scale":
            figure = Figure(name, 1.0, (1.0, 1.0), "<= 1.1")
            publish([figure], Path(command[-1]))

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_all_benchmarks_make_one_table(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--out", str(tmp_path)]) == 1
    names = [command[2].removeprefix("benchmarks.") for command in commands]
    assert names == list(bench.BENCHMARKS)
    assert "Failed: scale" in capsys.readouterr().out
    table = (tmp_path / "table.md").read_text()
    assert table.count("| ≤ 1.1 |") == len(names) - 1
    assert json.loads((tmp_path / "peers.json").read_text())["machine"]["cores"]


def test_the_table_can_be_made_in_pieces(
    commands: list[list[str]], tmp_path: Path
) -> None:
    for name in ("peers", "train_step"):
        assert bench.main(["--out", str(tmp_path), "--only", name]) == 0
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line[:13] for line in lines[4:6]] == ["| train_step ", "| peers | ≤ 1"]


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_every_benchmark_is_a_command(name: str) -> None:
    folder = Path(bench.__file__).parent
    assert (folder / f"{name}.py").is_file() or (
        folder / name / "__main__.py"
    ).is_file()


def test_a_file_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, reason in (("no/x.json", "no is no folder"), ("", "it is a folder")):
        with pytest.raises(SystemExit):
            server_memory.main(["--json", str(tmp_path / name)])
        error = capsys.readouterr().err
        assert "--json" in error
        assert reason in error
