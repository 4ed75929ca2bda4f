"""The grid runner with runs that only write their files."""

from __future__ import annotations

import errno
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flfa_app.errors import ConfigError
from flfa_app.experiments import cell_run
from flfa_app.experiments.cell_run import (
    CellOutcome,
    CellRunner,
    DiskFullError,
    RoundListener,
    SuperLinkDiedError,
)
from flfa_app.experiments.plan import check_data, describe_plan, make_plan, select_cells
from flfa_app.experiments.progress import GridProgress, format_duration
from flfa_app.experiments.runner import (
    CellEngine,
    flower_engine,
    locked_folder,
    run_plan,
)
from flfa_app.experiments.store import Cell, GridResults, GridSpec
from flfa_app.launch.superlink import SuperLink
from flfa_app.results.records import RoundRecord
from tests.federation import default_keys

Run = Callable[[Cell, Path], CellOutcome]


def cell(method: str, seed: int, **keys: Any) -> Cell:
    config = {**default_keys(), "seed": seed, "algorithm": method}
    config |= {key.replace("_", "-"): value for key, value in keys.items()}
    del config["output-dir"]
    return Cell(f"{method}-s{seed}", {"method": method}, seed, 4, config)


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    grid = GridSpec(
        "A grid", "", "score", [0, 1], {"method": ["fedavg", "moon"]}, "method"
    )
    cells = [cell(method, seed) for method in ("fedavg", "moon") for seed in (0, 1)]
    return GridResults(tmp_path / "out", grid, cells)


def complete(of: Cell, folder: Path) -> CellOutcome:
    """Leave what a run leaves."""
    directory = folder / "run-1"
    directory.mkdir()
    config = {"nodes": of.nodes, "run-config": {**of.run_config, "output-dir": "x"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "metrics.jsonl").write_text("")
    summary = {"score": 0.5, "seconds": 60.0, "rounds": 30}
    (directory / "summary.json").write_text(json.dumps(summary))
    return CellOutcome(directory, "", [])


class Recorder:
    """An engine that counts its starts and the cells it was asked for."""

    def __init__(self, run: Run = complete) -> None:
        self.run = run
        self.starts = 0
        self.cells: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[CellRunner]:
        self.starts += 1

        def attempt(of: Cell, folder: Path, listener: RoundListener) -> CellOutcome:
            self.cells.append(of.id)
            listener(RoundRecord(1))
            return self.run(of, folder)

        yield attempt


def run(results: GridResults, engine: CellEngine, workers: int = 1) -> dict[str, str]:
    plan = make_plan(results, results.cells, workers)
    console = Console(quiet=True)
    with locked_folder(results), GridProgress(plan.pending, console) as progress:
        return run_plan(plan, engine, progress)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_every_cell_once_on_one_engine(results: GridResults, workers: int) -> None:
    engine = Recorder()
    assert run(results, engine, workers) == {}
    assert sorted(engine.cells) == sorted(cell.id for cell in results.cells)
    assert engine.starts == 1
    assert all(results.status(cell) == "finished" for cell in results.cells)
    assert list((results.folder / "running").iterdir()) == []


def test_cells_run_at_the_same_time(results: GridResults) -> None:
    """Each waits for the other: one after another they would never end."""
    together = threading.Barrier(2, timeout=10)

    def meet(of: Cell, folder: Path) -> CellOutcome:
        together.wait()
        return complete(of, folder)

    assert run(results, Recorder(meet), workers=2) == {}


def test_finished_cells_are_not_run_again(results: GridResults) -> None:
    run(results, Recorder())
    engine = Recorder()
    run(results, engine)
    assert engine.cells == []
    assert engine.starts == 0


def test_other_settings_are_kept_aside_and_run_again(results: GridResults) -> None:
    run(results, Recorder())
    changed = cell("moon", 1, local_epochs=7)
    again = GridResults(results.folder, results.spec, [*results.cells[:3], changed])
    assert "1 of them have results with other settings" in describe_plan(
        make_plan(again, again.cells, 1)
    )
    engine = Recorder()
    run(again, engine)
    assert engine.cells == ["moon-s1"]
    assert again.settings_match(changed)
    aside = results.folder / "cells" / "moon-s1.other-1" / "config.json"
    assert json.loads(aside.read_text())["run-config"]["local-epochs"] == 5


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_a_damaged_cell_is_kept_aside_and_run_again(
    results: GridResults, name: str
) -> None:
    run(results, Recorder())
    damaged = results.cells[2]
    file = results.run_directory(damaged) / name
    file.write_text('{"cut off')
    told = describe_plan(make_plan(results, results.cells, 1))
    assert "4 cells: 3 finished, 1 to do" in told
    assert "1 of them are damaged: kept aside, run again" in told
    assert f"{file} cannot be read" in told
    assert "other settings" not in told
    engine = Recorder()
    assert run(results, engine) == {}
    assert engine.cells == [damaged.id]
    assert results.is_complete(damaged)
    aside = results.folder / "cells" / f"{damaged.id}.other-1" / name
    assert aside.read_text() == '{"cut off'


def test_a_failed_cell_is_marked_and_the_rest_goes_on(results: GridResults) -> None:
    def some(of: Cell, folder: Path) -> CellOutcome:
        if of.id == "fedavg-s1":
            return CellOutcome(None, "ValueError: too few images", ["line 1", "line 2"])
        return complete(of, folder)

    assert run(results, Recorder(some)) == {"fedavg-s1": "ValueError: too few images"}
    states = [results.status(cell) for cell in results.cells]
    assert states == ["finished", "failed", "finished", "finished"]
    mark = json.loads((results.folder / "cells/fedavg-s1.failed.json").read_text())
    assert mark["reason"] == "ValueError: too few images"
    assert Path(mark["log"]).read_text() == "line 1\nline 2\n"
    engine = Recorder()
    assert run(results, engine) == {}
    assert engine.cells == ["fedavg-s1"]
    assert results.status(results.cells[1]) == "finished"
    assert not results.failure_file(results.cells[1]).exists()


class Killed(BaseException):
    """What no code catches, as a kill is."""


def test_an_interrupted_cell_leaves_nothing_and_the_next_call_goes_on(
    results: GridResults,
) -> None:
    def killed_in_the_third(of: Cell, folder: Path) -> CellOutcome:
        if of.id == "moon-s0":
            (folder / "run-1").mkdir()
            (folder / "run-1" / "metrics.jsonl").write_text("{}\n")
            raise Killed
        return complete(of, folder)

    with pytest.raises(Killed):
        run(results, Recorder(killed_in_the_third))
    states = [results.status(cell) for cell in results.cells]
    assert states == ["finished", "finished", "missing", "missing"]
    engine = Recorder()
    run(results, engine)
    assert engine.cells == ["moon-s0", "moon-s1"]


def test_a_dead_superlink_is_started_again_once(results: GridResults) -> None:
    def dies_once(of: Cell, folder: Path) -> CellOutcome:
        if of.id == "fedavg-s1" and engine.starts == 1:
            raise SuperLinkDiedError("gone")
        return complete(of, folder)

    engine = Recorder(dies_once)
    assert run(results, engine) == {}
    assert engine.starts == 2
    assert engine.cells.count("fedavg-s1") == 2
    assert engine.cells.count("fedavg-s0") == 1


def test_a_superlink_that_dies_twice_in_a_row_ends_it(results: GridResults) -> None:
    def dies(of: Cell, folder: Path) -> CellOutcome:
        raise SuperLinkDiedError("the SuperLink has ended; its last lines:\nport taken")

    engine = Recorder(dies)
    with pytest.raises(RuntimeError, match=r"port taken\n.*twice in a row"):
        run(results, engine)
    assert engine.starts == 2
    assert {results.status(cell) for cell in results.cells} == {"missing"}


def test_a_superlink_that_dies_now_and_then_does_not_end_it(
    results: GridResults,
) -> None:
    """Each time a cell more is finished: there is a point in going on."""
    died: set[str] = set()

    def dies_once_a_cell(of: Cell, folder: Path) -> CellOutcome:
        if of.id not in died:
            died.add(of.id)
            raise SuperLinkDiedError("gone")
        return complete(of, folder)

    assert run(results, Recorder(dies_once_a_cell)) == {}


def test_a_full_disk_ends_it(results: GridResults) -> None:
    def full(of: Cell, folder: Path) -> CellOutcome:
        raise OSError(errno.ENOSPC, "No space left on device")

    engine = Recorder(full)
    with pytest.raises(DiskFullError, match="no space left"):
        run(results, engine)
    assert len(engine.cells) == 1


def test_a_run_that_found_the_disk_full_ends_it(results: GridResults) -> None:
    def full(of: Cell, folder: Path) -> CellOutcome:
        line = "OSError: [Errno 28] No space left on device"
        return CellOutcome(None, line, ["...", line])

    with pytest.raises(DiskFullError, match="Errno 28"):
        run(results, Recorder(full))


def test_too_little_room_for_a_run_ends_it(
    results: GridResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_run, "MIN_FREE_BYTES", 1 << 62)
    failing = Recorder(lambda of, folder: CellOutcome(None, "killed", []))
    with pytest.raises(DiskFullError, match="MB free"):
        run(results, failing)


def test_a_locked_folder_is_for_one_call_at_a_time(results: GridResults) -> None:
    with (
        locked_folder(results),
        pytest.raises(RuntimeError, match="in use by another call"),
        locked_folder(results),
    ):
        pass
    with locked_folder(results):  # free again
        pass


def test_a_second_call_leaves_the_grid_of_the_first(results: GridResults) -> None:
    """It does not write what it asks for before it has the folder."""
    with locked_folder(results):
        before = (results.folder / "grid.json").read_text()
        fewer = GridResults(results.folder, results.spec, results.cells[:1])
        with pytest.raises(RuntimeError, match="in use"), locked_folder(fewer):
            pass
        assert (results.folder / "grid.json").read_text() == before


def test_homes_are_known_before_a_superlink_is_started(
    results: GridResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is killed in between leaves none that the next cannot find."""
    file = results.folder / "flower-home"
    known: list[bool] = []

    def start(superlink: SuperLink) -> None:
        known.append(str(superlink.home) in file.read_text().splitlines())

    monkeypatch.setattr(SuperLink, "start", start)
    plan = make_plan(results, results.cells, 2)
    with locked_folder(results):
        with flower_engine(plan, 0.0)():
            homes = [Path(line) for line in file.read_text().splitlines()]
            assert len(homes) == 2
            assert all(home.is_dir() for home in homes)
        assert known == [True, True]
        assert not file.exists()
        assert not any(home.exists() for home in homes)


def test_homes_are_known_until_all_is_stopped(
    results: GridResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them cannot start: the other may still run."""
    file = results.folder / "flower-home"
    stopped: list[bool] = []

    def fail(superlink: SuperLink) -> None:
        raise RuntimeError("no port")

    def note(home: Path, *processes: object) -> None:
        stopped.append(str(home) in file.read_text().splitlines())

    monkeypatch.setattr(SuperLink, "start", fail)
    monkeypatch.setattr("flfa_app.launch.superlink.stop_processes", note)
    plan = make_plan(results, results.cells, 2)
    with (
        locked_folder(results),
        pytest.raises(RuntimeError, match="no port"),
        flower_engine(plan, 0.0)(),
    ):
        pass
    assert stopped == [True, True]
    assert not file.exists()


def test_only(results: GridResults) -> None:
    chosen = select_cells(results, {"method": ["moon"]}, [1])
    assert [cell.id for cell in chosen] == ["moon-s1"]
    assert select_cells(results, {}, []) == results.cells
    assert select_cells(results, {"method": ["moon", "fedavg"]}, []) == results.cells


@pytest.mark.parametrize(
    ("only", "problem"),
    [
        ({"colour": ["red"]}, "--only colour: not an axis; there are method"),
        ({"method": ["mooon"]}, "--only method=mooon: not a value; there are fedavg"),
    ],
)
def test_only_what_there_is(
    results: GridResults, only: dict[str, list[str]], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        select_cells(results, only, [])
    with pytest.raises(ConfigError, match="no cell with these values"):
        select_cells(results, {}, [5])


def test_the_plan_is_told(results: GridResults) -> None:
    """fedavg-s0 took 60 s; fedavg-s1 as long; of MOON nothing was measured."""
    fedavg = results.cells[:2]
    run(GridResults(results.folder, results.spec, fedavg[:1]), Recorder())
    plan = make_plan(results, fedavg, 1)
    assert (plan.seconds, plan.measured) == (60.0, True)
    assert "2 cells: 1 finished, 1 to do" in describe_plan(plan)
    assert "1:00 min, measured on finished cells" in describe_plan(plan)
    assert "a rough estimate" in describe_plan(make_plan(results, results.cells, 1))
    other = cell("moon", 0, dataset="octmnist")
    assert "time needed: unknown" in describe_plan(make_plan(results, [other], 1))


def test_workers_are_shared_out(results: GridResults) -> None:
    """Eight for four cells: two each; three for four: three cells with one each."""
    for workers, cells, each in ((8, 4, 2), (3, 3, 1), (1, 1, 1)):
        plan = make_plan(results, results.cells, workers)
        assert (plan.concurrent_cells, plan.workers) == (cells, each)


def test_missing_data_of_all_data_sets_is_told_at_once(tmp_path: Path) -> None:
    cells = [
        cell("fedavg", seed, dataset=dataset, data_dir=str(tmp_path))
        for dataset in ("bloodmnist", "pathmnist", "digits")
        for seed in (0, 1)
    ]
    with pytest.raises(ConfigError, match="the grid cannot start") as error:
        check_data(cells)
    _, *lines = str(error.value).splitlines()
    named = [line.split(":")[0] for line in lines if line.startswith("  - ")]
    assert named == ["  - bloodmnist", "  - pathmnist"]


def test_too_few_images_are_found_before_anything_runs() -> None:
    """1,438 digits are not 400 for each of four nodes; 300 they are.

    Those would be 1,200, dealt out evenly: whatever the seed, each has 359 or more.
    """
    enough, too_many = (
        [
            cell("fedavg", seed, partitioner="iid", min_partition_size=least)
            for seed in (0, 1)
        ]
        for least in (300, 400)
    )
    check_data(enough)
    with pytest.raises(ConfigError, match="the grid cannot start") as error:
        check_data([*enough, *too_many])
    _, *lines = str(error.value).splitlines()
    assert len(lines) == 1  # once, not for each seed
    assert "digits: min-partition-size is 400" in lines[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7, "0:07 min"), (3725, "62:05 min"), (7200, "2.0 hours"), (432000, "5.0 days")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_what_is_shown_without_a_terminal(results: GridResults) -> None:
    shown = io.StringIO()
    with GridProgress(results.cells, Console(file=shown, width=120)) as progress:
        progress.show_round(results.cells[0], RoundRecord(15))
        progress.show_end(results.cells[0], "")
        progress.show_end(results.cells[1], "ValueError: no")
    first, second = shown.getvalue().splitlines()
    assert first.startswith("1/4 fedavg-s0  (left 0:0")
    assert second.startswith("2/4 fedavg-s1 has failed: ValueError: no  (left ")
