"""The grid runner with runs that only write their files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flfa_app.experiments import runner
from flfa_app.experiments.cell_run import (
    CellOutcome,
    CellRunner,
    RoundListener,
    SuperLinkDiedError,
)
from flfa_app.experiments.plan import make_plan
from flfa_app.experiments.progress import GridProgress
from flfa_app.experiments.runner import CellEngine, locked_folder, run_plan
from flfa_app.experiments.store import Cell, GridResults
from flfa_app.launch.superlink import SuperLink
from flfa_app.results.records import RoundRecord
from tests.results_folder import AXES, make_grid, write_run

Run = Callable[[Cell, Path], CellOutcome]


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    """Four cells: digits-fedavg and digits-moon, each with s0 and s1."""
    axes = {"dataset": {"digits": {"dataset": "digits"}}, "method": AXES["method"]}
    return make_grid(tmp_path / "out", axes, seeds=(0, 1))


def complete(cell: Cell, folder: Path) -> CellOutcome:
    write_run(folder / "run-1", cell)
    return CellOutcome(folder / "run-1", "", [])


class FakeEngine:
    """Counts its starts and records the cells that it was asked to run."""

    def __init__(self, run: Run = complete) -> None:
        self.run = run
        self.starts = 0
        self.cells: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[CellRunner]:
        self.starts += 1

        def runner(cell: Cell, folder: Path, listener: RoundListener) -> CellOutcome:
            self.cells.append(cell.id)
            listener(RoundRecord(1))
            return self.run(cell, folder)

        yield runner


def run(results: GridResults, engine: CellEngine, workers: int = 1) -> dict[str, str]:
    plan = make_plan(results, results.cells, workers)
    progress = GridProgress(plan.pending, Console(quiet=True))
    with locked_folder(results), progress.bar:
        return run_plan(plan, engine, progress)


def rerun(results: GridResults) -> list[str]:
    """Run what is pending, which succeeds; return the cells."""
    engine = FakeEngine()
    assert run(results, engine) == {}
    assert statuses(results) == ["finished"] * 4
    assert list((results.folder / "running").glob("*")) == []
    return engine.cells


def statuses(results: GridResults) -> list[str]:
    return [results.status(cell) for cell in results.cells]


def test_every_cell_once_on_one_engine(results: GridResults) -> None:
    """Two at a time: each waits for another one, so that one by one would not end."""
    barrier = threading.Barrier(2, timeout=10)

    def meet(cell: Cell, folder: Path) -> CellOutcome:
        barrier.wait()
        return complete(cell, folder)

    engine = FakeEngine(meet)
    assert run(results, engine, workers=2) == {}
    assert sorted(engine.cells) == sorted(cell.id for cell in results.cells)
    assert engine.starts == 1
    assert rerun(results) == []


def test_a_run_with_other_settings_is_kept_aside(results: GridResults) -> None:
    *others, cell = results.cells
    for number, epochs in enumerate((5, 7, 9)):
        cell = replace(cell, run_config={**cell.run_config, "local-epochs": epochs})
        changed = GridResults(results.folder, results.spec, [*others, cell])
        cells = rerun(changed)
        assert (cells[-1], len(cells)) == (cell.id, 1 if number else 4)
        assert changed.is_complete(cell)
    for number, epochs in ((1, 5), (2, 7)):
        file = results.folder / "cells" / f"{cell.id}.other-{number}" / "config.json"
        assert json.loads(file.read_text())["run-config"]["local-epochs"] == epochs


def test_a_damaged_run_is_kept_aside(results: GridResults) -> None:
    rerun(results)
    cell = results.cells[2]
    (results.run_directory(cell) / "summary.json").write_text('{"cut off')
    assert rerun(results) == [cell.id]
    assert results.is_complete(cell)
    aside = results.folder / "cells" / f"{cell.id}.other-1" / "summary.json"
    assert aside.read_text() == '{"cut off'


def test_a_failed_cell_does_not_stop_the_others(results: GridResults) -> None:
    bad, reason = results.cells[1], "ValueError: too few images"

    def fail_one(cell: Cell, folder: Path) -> CellOutcome:
        if cell == bad:
            return CellOutcome(None, reason, ["line 1", "line 2"])
        return complete(cell, folder)

    assert run(results, FakeEngine(fail_one)) == {bad.id: reason}
    assert statuses(results) == ["finished", "failed", "finished", "finished"]
    failure = json.loads(results.failure_file(bad).read_text())
    assert failure["reason"] == reason
    assert Path(failure["log"]).read_text() == "line 1\nline 2\n"
    assert rerun(results) == [bad.id]
    assert not results.failure_file(bad).exists()


class Killed(BaseException):
    """Like a kill, nothing catches it."""


def test_an_interrupted_cell_leaves_nothing(results: GridResults) -> None:
    def killed_in_the_third(cell: Cell, folder: Path) -> CellOutcome:
        if cell.id == "digits-moon-s0":
            (folder / "run-1").mkdir()
            (folder / "run-1" / "metrics.jsonl").write_text("{}\n")
            raise Killed
        return complete(cell, folder)

    with pytest.raises(Killed):
        run(results, FakeEngine(killed_in_the_third))
    assert statuses(results) == ["finished", "finished", "missing", "missing"]
    assert rerun(results) == ["digits-moon-s0", "digits-moon-s1"]


def test_a_dead_superlink_is_started_again(results: GridResults) -> None:
    """Each cell loses its SuperLink once, with a finished cell in between."""
    died: set[str] = set()

    def die_once_per_cell(cell: Cell, folder: Path) -> CellOutcome:
        (folder / "partial").mkdir()
        if cell.id not in died:
            died.add(cell.id)
            raise SuperLinkDiedError("gone")
        return complete(cell, folder)

    engine = FakeEngine(die_once_per_cell)
    assert run(results, engine) == {}
    assert engine.starts == 5
    assert [engine.cells.count(cell.id) for cell in results.cells] == [2, 2, 2, 2]


def test_a_superlink_that_dies_twice_in_a_row_ends_the_grid(
    results: GridResults,
) -> None:
    def die(cell: Cell, folder: Path) -> CellOutcome:
        raise SuperLinkDiedError("the SuperLink has ended; its last lines:\nport taken")

    engine = FakeEngine(die)
    with pytest.raises(RuntimeError, match=r"port taken\n.*twice in a row"):
        run(results, engine)
    assert engine.starts == 2
    assert statuses(results) == ["missing"] * 4


def test_a_locked_folder_refuses_a_second_call(results: GridResults) -> None:
    """The second call does not write its grid before it has the lock."""
    fewer = GridResults(results.folder, results.spec, results.cells[:1])
    with locked_folder(results):
        content = (results.folder / "grid.json").read_text()
        with pytest.raises(RuntimeError, match="in use by another call"):
            locked_folder(fewer).__enter__()
        assert (results.folder / "grid.json").read_text() == content
    with locked_folder(fewer):  # unlocked again
        assert (results.folder / "grid.json").read_text() != content


def test_leftovers_of_a_killed_call_are_stopped(
    results: GridResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Path] = []
    monkeypatch.setattr(runner, "stop_processes", stopped.append)
    homes = [tmp_path / "home1", tmp_path / "home2"]
    for folder in (*homes, results.folder / "running" / "x"):
        folder.mkdir(parents=True)
    file = results.folder / "flower-home"
    file.write_text("".join(f"{home}\n" for home in homes))
    with locked_folder(results):
        assert stopped == homes
        leftover = [*homes, file, results.folder / "running"]
        assert not any(path.exists() for path in leftover)


@pytest.mark.parametrize("error", [None, RuntimeError("no port")])
def test_homes_are_recorded_until_all_superlinks_have_stopped(
    results: GridResults, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """If one SuperLink cannot start, another one may run, which must be stopped."""
    file = results.folder / "flower-home"
    events: list[tuple[str, bool]] = []

    def start(superlink: SuperLink) -> None:
        events.append(("start", str(superlink.home) in file.read_text().splitlines()))
        assert superlink.home.is_dir()
        if error:
            raise error

    def stop(home: Path, *processes: object) -> None:
        events.append(("stop", str(home) in file.read_text().splitlines()))

    monkeypatch.setattr(SuperLink, "start", start)
    monkeypatch.setattr("flfa_app.launch.superlink.stop_processes", stop)
    engine = runner.flower_engine(make_plan(results, results.cells, 2), 0.0)
    with locked_folder(results):
        with pytest.raises(RuntimeError) if error else nullcontext(), engine():
            homes = [Path(line) for line in file.read_text().splitlines()]
            assert len(homes) == 2
        assert sorted(events) == [("start", True)] * 2 + [("stop", True)] * 2
        assert not file.exists()
        assert error or not any(home.exists() for home in homes)
