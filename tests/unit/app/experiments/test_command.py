"""The command line of the grids: what is meant by --out, and what by --output."""

from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.experiments.__main__ import main

GRID = """
title = "A pair"
nodes = 2
seeds = [0]
[axes.dataset.digits]
dataset = "digits"
[axes.method.fedavg]
algorithm = "fedavg"
[axes.flfa.none]
flfa = "none"
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    file = tmp_path / "pair.toml"
    file.write_text(GRID)
    return file


def test_out_is_the_results_folder_of_table_and_report_too(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    out.mkdir()
    assert main(["table", str(grid), "--out", str(out)]) == 0
    assert "A pair" in capsys.readouterr().out
    assert main(["report", str(grid), "--out", str(out)]) == 0
    assert (out / "report.html").is_file()


def test_a_results_folder_that_is_not_there(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", str(grid), "--out", str(tmp_path / "none")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_two_results_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "is a results folder already" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_file_that_cannot_be_written_is_named(
    command: str, grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = grid / "x"  # in a file
    options = ["--out", str(tmp_path), "--output", str(file)]
    assert main([command, str(grid), *options]) == 1
    assert f"cannot write {file}" in capsys.readouterr().err
