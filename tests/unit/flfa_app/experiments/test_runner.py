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
from flfa_app.experiments import attempt as attempts
from flfa_app.experiments.attempt import Attempt, DiskFullError, Ended
from flfa_app.experiments.description import describe
from flfa_app.experiments.flower import SuperLinkDiedError
from flfa_app.experiments.plan import check_data, choose, make_plan
from flfa_app.experiments.progress import Progress, duration
from flfa_app.experiments.runner import (
    Engine,
    flower_engine,
    results_folder,
    run_plan,
)
from flfa_app.experiments.store import Cell, Grid, Results
from flfa_app.launch.superlink import SuperLink
from tests.federation import default_keys

Run = Callable[[Cell, Path], Ended]


def cell(method: str, seed: int, **keys: Any) -> Cell:
    config = {**default_keys(), "seed": seed, "algorithm": method}
    config |= {key.replace("_", "-"): value for key, value in keys.items()}
    del config["output-dir"]
    return Cell(f"{method}-s{seed}", {"method": method}, seed, 4, config)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    grid = Grid("A grid", "", "score", [0, 1], {"method": ["fedavg", "moon"]}, "method")
    cells = [cell(method, seed) for method in ("fedavg", "moon") for seed in (0, 1)]
    return Results(tmp_path / "out", grid, cells)


def complete(of: Cell, folder: Path) -> Ended:
    """Leave what a run leaves."""
    directory = folder / "run-1"
    directory.mkdir()
    config = {"nodes": of.nodes, "run-config": {**of.run_config, "output-dir": "x"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "metrics.jsonl").write_text("")
    summary = {"score": 0.5, "seconds": 60.0, "rounds": 30}
    (directory / "summary.json").write_text(json.dumps(summary))
    return Ended(directory, "", [])


class Recorder:
    """An engine that counts its starts and the cells it was asked for."""

    def __init__(self, run: Run = complete) -> None:
        self.run = run
        self.starts = 0
        self.cells: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[Attempt]:
        self.starts += 1

        def attempt(of: Cell, folder: Path, show: Callable[[str], None]) -> Ended:
            self.cells.append(of.id)
            show("INFO :      round  1/30  accuracy 50.00 %  1.0 s  left 0:29")
            return self.run(of, folder)

        yield attempt


def run(results: Results, engine: Engine, workers: int = 1) -> dict[str, str]:
    plan = make_plan(results, results.cells, workers)
    console = Console(quiet=True)
    with results_folder(results), Progress(plan.to_do, console) as progress:
        return run_plan(plan, engine, progress)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_every_cell_once_on_one_engine(results: Results, workers: int) -> None:
    engine = Recorder()
    assert run(results, engine, workers) == {}
    assert sorted(engine.cells) == sorted(cell.id for cell in results.cells)
    assert engine.starts == 1
    assert all(results.status(cell) == "finished" for cell in results.cells)
    assert list((results.folder / "running").iterdir()) == []


def test_cells_run_at_the_same_time(results: Results) -> None:
    """Each waits for the other: one after another they would never end."""
    together = threading.Barrier(2, timeout=10)

    def meet(of: Cell, folder: Path) -> Ended:
        together.wait()
        return complete(of, folder)

    assert run(results, Recorder(meet), workers=2) == {}


def test_finished_cells_are_not_run_again(results: Results) -> None:
    run(results, Recorder())
    engine = Recorder()
    run(results, engine)
    assert engine.cells == []
    assert engine.starts == 0


def test_other_settings_are_kept_aside_and_run_again(results: Results) -> None:
    run(results, Recorder())
    changed = cell("moon", 1, local_epochs=7)
    again = Results(results.folder, results.grid, [*results.cells[:3], changed])
    assert "1 of them are there with other settings" in describe(
        make_plan(again, again.cells, 1)
    )
    engine = Recorder()
    run(again, engine)
    assert engine.cells == ["moon-s1"]
    assert again.matches(changed)
    aside = results.folder / "cells" / "moon-s1.other-1" / "config.json"
    assert json.loads(aside.read_text())["run-config"]["local-epochs"] == 5


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_a_damaged_cell_is_kept_aside_and_run_again(
    results: Results, name: str
) -> None:
    run(results, Recorder())
    damaged = results.cells[2]
    file = results.directory(damaged) / name
    file.write_text('{"cut off')
    told = describe(make_plan(results, results.cells, 1))
    assert "4 cells: 3 finished, 1 to do" in told
    assert "1 of them are damaged: kept aside, run again" in told
    assert f"{file} cannot be read" in told
    assert "other settings" not in told
    engine = Recorder()
    assert run(results, engine) == {}
    assert engine.cells == [damaged.id]
    assert results.is_done(damaged)
    aside = results.folder / "cells" / f"{damaged.id}.other-1" / name
    assert aside.read_text() == '{"cut off'


def test_a_failed_cell_is_marked_and_the_rest_goes_on(results: Results) -> None:
    def some(of: Cell, folder: Path) -> Ended:
        if of.id == "fedavg-s1":
            return Ended(None, "ValueError: too few images", ["line 1", "line 2"])
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
    results: Results,
) -> None:
    def killed_in_the_third(of: Cell, folder: Path) -> Ended:
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


def test_a_dead_superlink_is_started_again_once(results: Results) -> None:
    def dies_once(of: Cell, folder: Path) -> Ended:
        if of.id == "fedavg-s1" and engine.starts == 1:
            raise SuperLinkDiedError("gone")
        return complete(of, folder)

    engine = Recorder(dies_once)
    assert run(results, engine) == {}
    assert engine.starts == 2
    assert engine.cells.count("fedavg-s1") == 2
    assert engine.cells.count("fedavg-s0") == 1


def test_a_superlink_that_dies_twice_in_a_row_ends_it(results: Results) -> None:
    def dies(of: Cell, folder: Path) -> Ended:
        raise SuperLinkDiedError("the SuperLink has ended; its last lines:\nport taken")

    engine = Recorder(dies)
    with pytest.raises(RuntimeError, match=r"port taken\n.*twice in a row"):
        run(results, engine)
    assert engine.starts == 2
    assert {results.status(cell) for cell in results.cells} == {"missing"}


def test_a_superlink_that_dies_now_and_then_does_not_end_it(results: Results) -> None:
    """Each time a cell more is finished: there is a point in going on."""
    died: set[str] = set()

    def dies_once_a_cell(of: Cell, folder: Path) -> Ended:
        if of.id not in died:
            died.add(of.id)
            raise SuperLinkDiedError("gone")
        return complete(of, folder)

    assert run(results, Recorder(dies_once_a_cell)) == {}


def test_a_full_disk_ends_it(results: Results) -> None:
    def full(of: Cell, folder: Path) -> Ended:
        raise OSError(errno.ENOSPC, "No space left on device")

    engine = Recorder(full)
    with pytest.raises(DiskFullError, match="no space left"):
        run(results, engine)
    assert len(engine.cells) == 1


def test_a_run_that_found_the_disk_full_ends_it(results: Results) -> None:
    def full(of: Cell, folder: Path) -> Ended:
        line = "OSError: [Errno 28] No space left on device"
        return Ended(None, line, ["...", line])

    with pytest.raises(DiskFullError, match="Errno 28"):
        run(results, Recorder(full))


def test_too_little_room_for_a_run_ends_it(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "LEAST_FREE_BYTES", 1 << 62)
    failing = Recorder(lambda of, folder: Ended(None, "killed", []))
    with pytest.raises(DiskFullError, match="MB free"):
        run(results, failing)


def test_a_results_folder_is_for_one_call_at_a_time(results: Results) -> None:
    with (
        results_folder(results),
        pytest.raises(RuntimeError, match="in use by another call"),
        results_folder(results),
    ):
        pass
    with results_folder(results):  # free again
        pass


def test_a_second_call_leaves_the_grid_of_the_first(results: Results) -> None:
    """It does not write what it asks for before it has the folder."""
    with results_folder(results):
        before = (results.folder / "grid.json").read_text()
        fewer = Results(results.folder, results.grid, results.cells[:1])
        with pytest.raises(RuntimeError, match="in use"), results_folder(fewer):
            pass
        assert (results.folder / "grid.json").read_text() == before


def test_homes_are_known_before_a_superlink_is_started(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is killed in between leaves none that the next cannot find."""
    file = results.folder / "flower-home"
    known: list[bool] = []

    def start(superlink: SuperLink) -> None:
        known.append(str(superlink.home) in file.read_text().splitlines())

    monkeypatch.setattr(SuperLink, "start", start)
    plan = make_plan(results, results.cells, 2)
    with results_folder(results):
        with flower_engine(plan, 0.0)():
            homes = [Path(line) for line in file.read_text().splitlines()]
            assert len(homes) == 2
            assert all(home.is_dir() for home in homes)
        assert known == [True, True]
        assert not file.exists()
        assert not any(home.exists() for home in homes)


def test_homes_are_known_until_all_is_stopped(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them cannot start: the other may still run."""
    file = results.folder / "flower-home"
    stopped: list[bool] = []

    def fail(superlink: SuperLink) -> None:
        raise RuntimeError("no port")

    def note(home: Path, *processes: object) -> None:
        stopped.append(str(home) in file.read_text().splitlines())

    monkeypatch.setattr(SuperLink, "start", fail)
    monkeypatch.setattr("flfa_app.launch.superlink.stop", note)
    plan = make_plan(results, results.cells, 2)
    with (
        results_folder(results),
        pytest.raises(RuntimeError, match="no port"),
        flower_engine(plan, 0.0)(),
    ):
        pass
    assert stopped == [True, True]
    assert not file.exists()


def test_only(results: Results) -> None:
    chosen = choose(results, {"method": ["moon"]}, [1])
    assert [cell.id for cell in chosen] == ["moon-s1"]
    assert choose(results, {}, []) == results.cells
    assert choose(results, {"method": ["moon", "fedavg"]}, []) == results.cells


@pytest.mark.parametrize(
    ("only", "problem"),
    [
        ({"colour": ["red"]}, "--only colour: not an axis; there are method"),
        ({"method": ["mooon"]}, "--only method=mooon: not a value; there are fedavg"),
    ],
)
def test_only_what_there_is(
    results: Results, only: dict[str, list[str]], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        choose(results, only, [])
    with pytest.raises(ConfigError, match="no cell with these values"):
        choose(results, {}, [5])


def test_the_plan_is_told(results: Results) -> None:
    """fedavg-s0 took 60 s; fedavg-s1 as long; of MOON nothing was measured."""
    fedavg = results.cells[:2]
    run(Results(results.folder, results.grid, fedavg[:1]), Recorder())
    plan = make_plan(results, fedavg, 1)
    assert (plan.seconds, plan.measured) == (60.0, True)
    assert "2 cells: 1 finished, 1 to do" in describe(plan)
    assert "1:00 min, as the cells that are finished" in describe(plan)
    assert "a rough estimate" in describe(make_plan(results, results.cells, 1))
    other = cell("moon", 0, dataset="octmnist")
    assert "time needed: unknown" in describe(make_plan(results, [other], 1))


def test_workers_are_shared_out(results: Results) -> None:
    """Eight for four cells: two each; three for four: three cells with one each."""
    for workers, cells, each in ((8, 4, 2), (3, 3, 1), (1, 1, 1)):
        plan = make_plan(results, results.cells, workers)
        assert (plan.cells_at_a_time, plan.workers) == (cells, each)


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
    assert duration(seconds) == text


def test_what_is_shown_without_a_terminal(results: Results) -> None:
    shown = io.StringIO()
    with Progress(results.cells, Console(file=shown, width=120)) as progress:
        progress.line(results.cells[0], "round 15/30  accuracy 1 %  left 9:99")
        progress.ended(results.cells[0], "")
        progress.ended(results.cells[1], "ValueError: no")
    first, second = shown.getvalue().splitlines()
    assert first.startswith("1/4 fedavg-s0  (left 0:0")
    assert second.startswith("2/4 fedavg-s1 has failed: ValueError: no  (left ")
