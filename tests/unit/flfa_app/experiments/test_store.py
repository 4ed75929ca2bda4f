"""A results folder, written by hand in each of its states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flfa_app.errors import ConfigError
from flfa_app.experiments.store import (
    Cell,
    GridResults,
    GridSpec,
    read_results,
    write_grid,
)

GRID = GridSpec(
    title="A table",
    table="",
    metric="score",
    seeds=[0, 1],
    axes={"dataset": ["digits"], "flfa": ["none", "lowest"]},
    columns="dataset",
)
SETTINGS = {"dataset": "digits", "flfa": "none", "learning-rate": 0.1}


def cell(seed: int = 0, **settings: Any) -> Cell:
    return Cell(
        id=f"digits-none-s{seed}",
        axes={"dataset": "digits", "flfa": "none"},
        seed=seed,
        nodes=4,
        run_config={**SETTINGS, "seed": seed, **settings},
    )


def finish(results: GridResults, of: Cell, **other: Any) -> Path:
    """Write a run directory; ``other`` changes its settings."""
    directory = results.run_directory(of)
    directory.mkdir(parents=True)
    settings = {**of.run_config, "output-dir": "/anywhere", **other}
    nodes = settings.pop("nodes", of.nodes)
    config = {"nodes": nodes, "run-config": settings}
    (directory / "config.json").write_text(json.dumps(config))
    rows = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "metrics.jsonl").write_text(lines)
    (directory / "summary.json").write_text(json.dumps({"score": 0.75}))
    return directory


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    results = GridResults(tmp_path / "out", GRID, [cell(0), cell(1)])
    write_grid(results)
    return results


def test_what_is_written_is_read(results: GridResults) -> None:
    assert read_results(results.folder) == results


def test_nothing_is_there_yet(results: GridResults) -> None:
    first = results.cells[0]
    assert results.status(first) == "missing"
    assert results.summary(first) is None
    assert results.rounds(first) == []
    assert results.failure_reason(first) is None


def test_a_finished_cell(results: GridResults) -> None:
    first, second = results.cells
    finish(results, first)
    assert results.status(first) == "finished"
    assert results.summary(first) == {"score": 0.75}
    assert [record.server_round for record in results.rounds(first)] == [1, 2]
    assert results.settings_match(first)
    assert results.status(second) == "missing"


def test_a_directory_without_summary_is_not_finished(results: GridResults) -> None:
    first = results.cells[0]
    (finish(results, first) / "summary.json").unlink()
    assert results.status(first) == "missing"
    assert results.rounds(first) == []


def test_a_failed_cell(results: GridResults) -> None:
    first = results.cells[0]
    results.failure_file(first).write_text(json.dumps({"reason": "no memory"}))
    assert results.status(first) == "failed"
    assert results.failure_reason(first) == "no memory"
    finish(results, first)  # a later attempt
    assert results.status(first) == "finished"
    assert results.failure_reason(first) is None


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"learning-rate": 0.2}, "learning-rate was 0.2, is 0.1"),
        ({"flfa": "lowest"}, "flfa was 'lowest', is 'none'"),
        ({"nodes": 5}, "nodes was 5, is 4"),
        ({"new-key": 1}, "new-key was 1, is 'not there'"),
    ],
)
def test_other_settings(
    results: GridResults, other: dict[str, Any], difference: str
) -> None:
    first = results.cells[0]
    finish(results, first, **other)
    assert not results.settings_match(first)
    assert results.setting_differences(first) == [difference]


def test_waiting_longer_is_the_same_run(results: GridResults) -> None:
    first = results.cells[0]
    finish(results, first, **{"round-timeout": 7.0})
    assert results.settings_match(first)


@pytest.mark.parametrize("key", ["data-dir", "state-dir"])
def test_where_files_lie_is_no_setting(results: GridResults, key: str) -> None:
    """A grid says "data"; the run, in a folder of its own, has the whole path."""
    relative = cell(**{key: "data"})
    finish(results, relative, **{key: "/somewhere/data"})
    assert results.settings_match(relative)
    assert results.is_complete(relative)


def test_a_failure_after_a_run_with_other_settings_counts(results: GridResults) -> None:
    first = results.cells[0]
    finish(results, first, **{"learning-rate": 0.2})
    assert results.status(first) == "finished"
    results.failure_file(first).write_text(json.dumps({"reason": "no memory"}))
    assert results.status(first) == "failed"
    assert results.failure_reason(first) == "no memory"
    assert results.summary(first) is None
    assert results.rounds(first) == []


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_a_damaged_file_is_named_with_the_cure(results: GridResults, name: str) -> None:
    first = results.cells[0]
    directory = finish(results, first)
    assert results.damage(first) is None
    assert results.is_complete(first)
    file = directory / name
    file.write_text(file.read_text()[:-5])
    damage = results.damage(first)
    assert damage is not None
    assert damage.startswith(f"{file} cannot be read: ")
    assert damage.endswith(f"or delete the folder {directory}")
    assert not results.is_complete(first)
    with pytest.raises(ConfigError) as error:
        (results.config(first), results.summary(first), results.rounds(first))
    assert str(error.value) == damage


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_missing_file_is_damage_too(results: GridResults, name: str) -> None:
    first = results.cells[0]
    file = finish(results, first) / name
    file.unlink()
    assert f"{file} cannot be read: No such file" in str(results.damage(first))
    assert not results.is_complete(first)


def test_a_whole_number_is_the_float_it_stands_for(results: GridResults) -> None:
    """JSON has 1.0 where a config in TOML may have said 1."""
    one = cell(**{"learning-rate": 1})
    finish(results, one, **{"learning-rate": 1.0})
    assert results.settings_match(one)


def test_a_folder_without_grid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a results folder: .*no grid\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"cells": []}'])
def test_a_broken_grid_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "grid.json").write_text(content)
    with pytest.raises(
        ConfigError, match=r"grid\.json (cannot be read|has no).*; delete .*grid\.json"
    ):
        read_results(tmp_path)
