"""The command line of the grids: what is meant by --out, and what by --output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flfa_app.experiments import __main__ as command_line
from flfa_app.experiments import time_estimate as estimate
from flfa_app.experiments.__main__ import main
from flfa_app.experiments.plan import open_grid
from flfa_app.experiments.runner import locked_folder
from flfa_app.experiments.store import read_results

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


def test_out_is_the_locked_folder_of_table_and_report_too(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    out.mkdir()
    assert main(["table", str(grid), "--out", str(out)]) == 0
    assert "A pair" in capsys.readouterr().out
    assert main(["report", str(grid), "--out", str(out)]) == 0
    assert (out / "report.html").is_file()


def test_a_locked_folder_that_is_not_there(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", str(grid), "--out", str(tmp_path / "none")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_two_locked_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def with_more(grid: Path, *lines: str) -> Path:
    """Add two methods, and lines before the first table."""
    text = grid.read_text().replace("seeds = [0]", "\n".join(["seeds = [0]", *lines]))
    grid.write_text(text + '[axes.method.moon]\nalgorithm = "moon"\n')
    return grid


def listed(text: str) -> list[str]:
    """The names of the cells that a dry run lists."""
    return re.findall(r"^  (\S+) ", text, flags=re.M)


def dry_run(grid: Path, *options: str) -> int:
    out = grid.with_suffix("")
    return main(["run", str(grid), "--out", str(out), "--dry-run", *options])


def test_a_dry_run_lists_the_cells_and_writes_nothing(
    grid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 rounds of 1,438 digits, five epochs, and of 359 for the test.

    At least two nodes take part, which is both: (7,190 + 359 / 3) x 30 images at 1 ms
    are 219.3 s; with 10 s for the start 3:49 minutes.
    """
    monkeypatch.setattr(estimate, "IMAGE_SECONDS", {"cnn": 0.001})
    monkeypatch.setattr(estimate, "START_SECONDS", 10.0)
    assert dry_run(with_more(grid), "--workers", "1") == 0
    text = capsys.readouterr().out
    assert listed(text) == ["digits-fedavg-none-s0", "digits-moon-none-s0"]
    assert text.count(" 3:49 min\n") == 2
    assert not grid.with_suffix("").exists()


def test_of_many_cells_the_seeds_share_a_line(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [str(seed) for seed in range(16)]  # of two methods: 32 cells
    assert dry_run(with_more(grid), "--seeds", *seeds) == 0
    text = capsys.readouterr().out
    assert listed(text) == ["digits-fedavg-none", "digits-moon-none"]
    assert text.count(f"seeds {', '.join(seeds)}, each ") == 2


def test_options_that_are_repeated_add_up(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = with_more(grid)
    assert dry_run(file, "--only", "method=moon", "--only", "flfa=none") == 0
    assert listed(capsys.readouterr().out) == ["digits-moon-none-s0"]
    assert dry_run(file, "--only", "method=moon", "--seeds", "0", "--seeds", "3") == 0
    names = ["digits-moon-none-s0", "digits-moon-none-s3"]
    assert listed(capsys.readouterr().out) == names


@pytest.mark.parametrize("share", ["-1", "nan", "inf", "much"])
def test_a_share_of_a_gpu(
    grid: Path, share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        dry_run(grid, f"--gpus-per-client={share}")
    error = capsys.readouterr().err
    assert f"--gpus-per-client: {share} is no share of a GPU" in error


@pytest.mark.parametrize("below", [".", "results"])
def test_out_cannot_be_a_file(
    grid: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = grid / below
    assert main(["run", str(grid), "--out", str(out), "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert f"--out {out}: {grid} is a file; name a folder" in error


@pytest.mark.parametrize("wrong", ['table = "tabel1"', 'metric = "scroe"'])
def test_a_dry_run_finds_what_only_the_table_would_have(
    grid: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(with_more(grid, wrong)) == 1
    assert wrong.replace(" = ", " is ").replace('"', "'") in capsys.readouterr().err


def test_further_seeds_stay_in_the_grid(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seed 7 of MOON alone was asked for; nobody asks for seed 7 of FedAvg."""
    file, out = with_more(grid), tmp_path / "out"
    results, chosen = open_grid(file, out, {"method": ["moon"]}, [0, 7])
    assert [cell.id for cell in chosen] == [
        "digits-moon-none-s0",
        "digits-moon-none-s7",
    ]
    with locked_folder(results):
        pass
    everything = [
        "digits-fedavg-none-s0",
        "digits-moon-none-s0",
        "digits-moon-none-s7",
    ]
    # The next call does not name it: it is not run, but it is not forgotten.
    results, chosen = open_grid(file, out)
    assert [cell.seed for cell in chosen] == [0, 0]
    assert [cell.id for cell in results.cells] == everything
    with locked_folder(results):
        pass
    assert [cell.id for cell in read_results(out).cells] == everything
    assert main(["table", str(file), "--out", str(out), "--format", "csv"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    asked = head.split(",").index("seeds-asked")
    numbers = {line.split(",")[1]: line.split(",")[asked] for line in lines}
    assert numbers == {"fedavg": "1", "moon": "2"}


def test_a_damaged_grid_is_named_with_the_cure(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = grid.with_suffix("")
    out.mkdir()
    (out / "grid.json").write_text("{")
    assert dry_run(grid) == 1
    assert f"delete {out / 'grid.json'} and run" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_damaged_cell_is_named_with_the_cure(
    command: str, grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = grid.with_suffix("")
    results, (cell,) = open_grid(grid, out)
    with locked_folder(results):
        pass
    directory = results.run_directory(cell)
    directory.mkdir()
    config = {"nodes": cell.nodes, "run-config": cell.run_config}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "summary.json").write_text('{"score": 0.5}')
    (directory / "metrics.jsonl").write_text('{"round": 1, "accu')
    assert main([command, str(grid), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert f"{directory / 'metrics.jsonl'} cannot be read" in error
    assert f"delete the folder {directory}" in error


def test_an_impossible_cell_ends_a_call_before_anything_runs(
    grid: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1,438 digits are not 2,000 for each of two nodes."""
    monkeypatch.setattr(command_line, "flower_engine", None)  # not to be called
    grid.write_text(grid.read_text() + "min-partition-size = 2000\n")
    assert main(["run", str(grid), "--out", str(grid.with_suffix(""))]) == 1
    assert "digits: min-partition-size is 2000" in capsys.readouterr().err
    assert not grid.with_suffix("").exists()
