"""Which cells a call selects and runs, and the checks before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfa_app.errors import ConfigError
from flfa_app.experiments.plan import (
    check_data,
    describe_plan,
    make_plan,
    open_grid,
    select_cells,
)
from flfa_app.experiments.store import Cell, GridResults, read_results, write_grid
from tests.results_folder import AXES, PAIR, finish_cell, make_grid

METHODS = {
    "dataset": {"digits": {"dataset": "digits", "model": "cnn"}},
    "method": AXES["method"],
}


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path / "out", METHODS, seeds=(0, 1))


def ids(cells: list[Cell]) -> list[str]:
    return [cell.id for cell in cells]


def with_keys(cell: Cell, **keys: Any) -> Cell:
    keys = {key.replace("_", "-"): value for key, value in keys.items()}
    return replace(cell, run_config={**cell.run_config, **keys})


def test_select_cells(results: GridResults) -> None:
    assert ids(select_cells(results, {"method": ["moon"]}, [1])) == ["digits-moon-s1"]
    assert select_cells(results, {}, []) == results.cells
    assert select_cells(results, {"method": ["moon", "fedavg"]}, []) == results.cells
    with pytest.raises(ConfigError, match="no cell with these values"):
        select_cells(results, {}, [5])
    with pytest.raises(ConfigError) as error:
        select_cells(results, {"method": ["mon"], "colour": ["red"]}, [])
    assert "--only colour: not an axis; there are dataset, method" in str(error.value)
    value = "--only method=mon: not a value; there are fedavg, moon"
    assert value in str(error.value)


def test_extra_seeds_stay_in_the_grid(tmp_path: Path) -> None:
    """Seed 7 is requested for MOON, so it is not missing for FedAvg."""
    file, folder = tmp_path / "pair.toml", tmp_path / "out"
    file.write_text(PAIR)
    results, selected = open_grid(file, folder, {"method": ["moon"]}, [0, 7])
    assert ids(selected) == ["digits-moon-s0", "digits-moon-s7"]
    write_grid(results)
    requested = ["digits-fedavg-s0", "digits-moon-s0", "digits-moon-s7"]
    # A later call without the seed does not run it, but keeps it.
    results, selected = open_grid(file, folder)
    assert ids(selected) == requested[:2]
    assert ids(results.cells) == requested
    write_grid(results)
    assert ids(read_results(folder).cells) == requested


def test_description(results: GridResults) -> None:
    """fedavg-s0 took 60 s, so fedavg-s1 will, too; MOON was not measured."""
    fedavg = results.cells[:2]
    summary = finish_cell(results, fedavg[0]) / "summary.json"
    summary.write_text('{"seconds": 60.0, "rounds": 30}')
    plan = make_plan(results, fedavg, 1)
    assert (plan.seconds, plan.measured) == (60.0, True)
    text = describe_plan(plan)
    assert "2 cells: 1 finished, 1 to do" in text
    assert "time needed: 1:00 min, measured on finished cells" in text
    assert "a rough estimate" in describe_plan(make_plan(results, results.cells, 1))
    unknown = with_keys(results.cells[2], dataset="files")
    assert "time needed: unknown" in describe_plan(make_plan(results, [unknown], 1))


def test_description_of_runs_that_will_be_replaced(results: GridResults) -> None:
    first, second, *_ = results.cells
    finish_cell(results, first, settings={"local-epochs": 7})
    file = finish_cell(results, second) / "metrics.jsonl"
    text = describe_plan(make_plan(results, results.cells, 1))
    assert "4 cells: 1 finished, 3 to do" in text
    assert "1 of them have results with other settings: kept aside" in text
    assert "damaged" not in text
    file.write_text('{"cut off')
    text = describe_plan(make_plan(results, results.cells, 1))
    assert "4 cells: 0 finished, 4 to do" in text
    assert "1 of them are damaged: kept aside, run again" in text
    assert f"  - {file} cannot be read" in text


def test_workers_are_shared_out(results: GridResults) -> None:
    """Eight for four cells: two each; three for four: three cells with one each."""
    for workers, cells, each in ((8, 4, 2), (3, 3, 1), (1, 1, 1)):
        plan = make_plan(results, results.cells, workers)
        assert (plan.concurrent_cells, plan.workers) == (cells, each)


def test_all_missing_data_sets_are_named_once(tmp_path: Path) -> None:
    """The digits are built in."""
    datasets = {
        name: {"dataset": name} for name in ("bloodmnist", "digits", "pathmnist")
    }
    results = make_grid(tmp_path, {"dataset": datasets, "method": AXES["method"]})
    keys = {"model": "cnn", "data_dir": str(tmp_path)}
    with pytest.raises(ConfigError, match="the grid cannot start") as error:
        check_data([with_keys(cell, **keys) for cell in results.cells])
    named = [problem.partition(":")[0] for problem in error.value.problems]
    assert named == ["bloodmnist", "pathmnist"]


def test_too_few_images_are_found_before_anything_runs(results: GridResults) -> None:
    """1,438 digits are enough for 140 on each of ten nodes, but not for 150.

    The even partition gives 143 or 144 to each, whatever the seed.
    """
    enough, too_many = (
        [
            with_keys(cell, partitioner="iid", min_partition_size=minimum)
            for cell in results.cells
        ]
        for minimum in (140, 150)
    )
    check_data(enough)
    with pytest.raises(ConfigError) as error:
        check_data([*enough, *too_many])
    (problem,) = error.value.problems  # not one for each seed
    assert problem.startswith("digits: min-partition-size is 150")
