"""The command line of the grids."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flfa_app.experiments import __main__ as command_line
from flfa_app.experiments import time_estimate
from flfa_app.experiments.__main__ import main
from flfa_app.experiments.plan import open_grid
from flfa_app.experiments.store import write_grid
from tests.results_folder import PAIR, finish_cell

Output = pytest.CaptureFixture[str]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    file = tmp_path / "pair.toml"
    file.write_text(PAIR)
    return file


def dry_run(grid: Path, *options: str) -> int:
    out = grid.with_suffix("")
    return main(["run", str(grid), "--out", str(out), "--dry-run", *options])


def list_cells(grid: Path, capsys: Output, *options: str) -> list[str]:
    """Return the names that a dry run lists."""
    assert dry_run(grid, *options) == 0
    return re.findall(r"^  (\S+) ", capsys.readouterr().out, flags=re.M)


def test_out_and_output_of_table_and_report(
    grid: Path, tmp_path: Path, capsys: Output
) -> None:
    out = tmp_path / "results"
    out.mkdir()
    assert main(["table", str(grid), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# A pair\n")
    file = tmp_path / "new" / "table.md"
    assert main(["table", str(grid), "--out", str(out), "--output", str(file)]) == 0
    assert file.read_text() == text
    assert main(["report", str(grid), "--out", str(out)]) == 0
    assert f"Report: {out / 'report.html'}\n" in capsys.readouterr().out
    assert (out / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    below = str(grid / "x")  # below a file
    for command in ("table", "report"):
        assert main([command, str(grid), "--out", str(out), "--output", below]) == 1
        assert f"cannot write {below}" in capsys.readouterr().err


def test_results_folders_that_cannot_be_used(
    grid: Path, tmp_path: Path, capsys: Output
) -> None:
    missing = tmp_path / "missing"
    assert main(["table", str(grid), "--out", str(missing)]) == 1
    assert f"there is no folder {missing}" in capsys.readouterr().err
    assert not missing.exists()
    assert main(["table", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "is a results folder already" in capsys.readouterr().err
    for out in (grid, grid / "below"):
        assert main(["run", str(grid), "--out", str(out), "--dry-run"]) == 1
        error = capsys.readouterr().err
        assert f"--out {out}: {grid} is a file; name a folder" in error


def test_a_dry_run_lists_the_cells_and_writes_nothing(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """30 rounds with five epochs of 1,438 digits and an evaluation of 359.

    At least two nodes participate, which is all: (7,190 + 359 / 3) x 30 images of 1 ms
    take 219.3 s; with 10 s for the start that is 3:49 minutes.
    """
    monkeypatch.setattr(time_estimate, "IMAGE_SECONDS", {"cnn": 0.001})
    monkeypatch.setattr(time_estimate, "START_SECONDS", 10.0)
    assert dry_run(grid, "--workers", "1") == 0
    lines = ["  digits-fedavg-s0  3:49 min", "  digits-moon-s0    3:49 min"]
    assert capsys.readouterr().out.splitlines()[-2:] == lines
    assert not grid.with_suffix("").exists()


def test_a_long_list_groups_the_seeds(grid: Path, capsys: Output) -> None:
    """Two methods with 15 seeds are 30 cells, with 16 seeds 32."""
    seeds = [str(seed) for seed in range(16)]
    assert len(list_cells(grid, capsys, "--seeds", *seeds[:15])) == 30
    assert dry_run(grid, "--seeds", *seeds) == 0
    text = capsys.readouterr().out
    for name in ("  digits-fedavg  ", "  digits-moon    "):
        assert f"\n{name}seeds {', '.join(seeds)}, each " in text


def test_repeated_options_add_up(grid: Path, capsys: Output) -> None:
    moon = ["--only", "method=moon"]
    cells = list_cells(grid, capsys, *moon, "--only", "dataset=digits")
    assert cells == ["digits-moon-s0"]
    cells = list_cells(grid, capsys, *moon, "--seeds", "0", "--seeds", "3")
    assert cells == ["digits-moon-s0", "digits-moon-s3"]
    assert dry_run(grid, "--only", "moon") == 1
    assert "--only moon: it must be AXIS=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["-1", "nan", "inf", "much"])
def test_shares_that_no_gpu_has(grid: Path, share: str, capsys: Output) -> None:
    with pytest.raises(SystemExit):
        dry_run(grid, f"--gpus-per-client={share}")
    error = capsys.readouterr().err
    assert f"--gpus-per-client: {share} is no share of a GPU" in error


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_damaged_cell_is_named(command: str, grid: Path, capsys: Output) -> None:
    out = grid.with_suffix("")
    results, (cell, _) = open_grid(grid, out)
    write_grid(results)
    file = finish_cell(results, cell) / "metrics.jsonl"
    file.write_text('{"round": 1, "accu')
    assert main([command, str(grid), "--out", str(out)]) == 1
    assert f"{file} cannot be read" in capsys.readouterr().err


def test_an_impossible_cell_ends_a_call_before_anything_runs(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """1,438 digits are less than 2,000 for each of two nodes."""
    monkeypatch.setattr(command_line, "flower_engine", None)  # must not be called
    grid.write_text(grid.read_text() + "min-partition-size = 2000\n")
    assert main(["run", str(grid), "--out", str(grid.with_suffix(""))]) == 1
    assert "digits: min-partition-size is 2000" in capsys.readouterr().err
    assert not grid.with_suffix("").exists()
