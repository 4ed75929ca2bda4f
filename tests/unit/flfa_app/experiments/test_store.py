"""A results folder in each of its states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfa_app.errors import ConfigError
from flfa_app.experiments.store import GridResults, read_results
from tests.results_folder import fail_cell, finish_cell, make_grid

AXES = {"dataset": {"digits": {"dataset": "digits"}}, "flfa": {"none": {}}}


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path / "out", AXES, seeds=(0, 1))


def test_states_of_a_cell(results: GridResults) -> None:
    assert read_results(results.folder) == results
    first, second = results.cells
    assert results.status(first) == "missing"
    assert (results.summary(first), results.rounds(first)) == (None, [])
    fail_cell(results, first, "no memory")
    assert results.status(first) == "failed"
    assert results.failure_reason(first) == "no memory"
    directory = finish_cell(results, first, 0.75)  # by a later attempt
    assert results.status(first) == "finished"
    assert results.failure_reason(first) is None
    assert results.summary(first) == {"score": 0.75}
    assert [record.server_round for record in results.rounds(first)] == [1, 2, 3, 4]
    assert results.is_complete(first)
    assert results.status(second) == "missing"
    results.failure_file(first).unlink()
    (directory / "summary.json").unlink()
    assert results.status(first) == "missing"
    assert results.rounds(first) == []


@pytest.mark.parametrize(
    ("settings", "differences"),
    [
        ({"learning-rate": 0.2}, ["learning-rate was 0.2, is 0.02"]),
        ({"nodes": 5}, ["nodes was 5, is 10"]),
        ({"new-key": 1}, ["new-key was 1, is 'not there'"]),
        ({"round-timeout": 7.0}, []),
        # JSON has 1.0 for a 1 of a TOML file.
        ({"num-fa-layers": 1.0}, []),
        # A grid may have relative paths, a run has absolute ones.
        ({"data-dir": "/data", "state-dir": "/state"}, []),
    ],
)
def test_differences_of_settings(
    results: GridResults, settings: dict[str, Any], differences: list[str]
) -> None:
    cell = results.cells[0]
    finish_cell(results, cell, settings=settings)
    assert results.setting_differences(cell) == differences
    assert results.is_complete(cell) == (not differences)
    newer = replace(cell, run_config={**cell.run_config, "newer-key": 1})
    absent = "newer-key was 'not there', is 1"
    assert absent in results.setting_differences(newer)


def test_a_failure_counts_more_than_a_run_with_other_settings(
    results: GridResults,
) -> None:
    cell = results.cells[0]
    finish_cell(results, cell, settings={"learning-rate": 0.2})
    assert results.status(cell) == "finished"
    fail_cell(results, cell, "no memory")
    assert results.status(cell) == "failed"
    assert results.failure_reason(cell) == "no memory"
    assert (results.summary(cell), results.rounds(cell)) == (None, [])


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_a_damaged_file_is_named_with_the_cure(results: GridResults, name: str) -> None:
    cell = results.cells[0]
    directory = finish_cell(results, cell)
    assert results.damage(cell) is None
    file = directory / name
    file.write_text(file.read_text()[:-5])
    damage = results.damage(cell)
    assert damage is not None
    assert damage.startswith(f"{file} cannot be read: ")
    assert damage.endswith(f"or delete the folder {directory}")
    assert not results.is_complete(cell)
    with pytest.raises(ConfigError) as error:
        (results.config(cell), results.summary(cell), results.rounds(cell))
    assert str(error.value) == damage
    file.unlink()
    if results.has_run(cell):
        assert f"{file} cannot be read: No such file" in str(results.damage(cell))


@pytest.mark.parametrize("content", ["{", "[]", '{"cells": []}'])
def test_a_damaged_grid_is_named_with_the_cure(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError, match=r"not a results folder: .*no grid\.json"):
        read_results(tmp_path)
    (tmp_path / "grid.json").write_text(content)
    with pytest.raises(
        ConfigError, match=r"grid\.json (cannot be read|has no).*; delete .*grid\.json"
    ):
        read_results(tmp_path)
