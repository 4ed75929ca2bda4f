"""A cell on a SuperLink that only writes the files of a run."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from flfa_app.experiments import cell_run
from flfa_app.experiments.cell_run import (
    CellOutcome,
    DiskFullError,
    SuperLinkDiedError,
    flower_cell_runner,
    run_cell,
)
from flfa_app.experiments.store import Cell, GridResults
from flfa_app.launch.superlink import RunOutcome, SuperLink
from flfa_app.results.records import RoundRecord
from tests.results_folder import make_grid, write_run

LINE_1, LINE_2 = RoundRecord(1).to_line(), RoundRecord(2).to_line()


class FakeSuperLink:
    """Writes metrics and log lines in turn; the run then ends as it is told to."""

    ray_workers = 3
    stopping = False

    def __init__(self, folder: Path, error: str = "", alive: bool = True) -> None:
        self.log = folder / "superlink.log"
        self.log.write_text("\x1b[31mport taken\x1b[0m\n")
        self.error, self.is_alive = error, alive
        self.seen_rounds: list[int] = []
        self.rounds_at_line: list[list[int]] = []

    def stream_run(self, *, output_dir: Path, on_log_line: Any, **options: Any) -> str:
        self.options = options
        on_log_line("starting")
        directory = output_dir / "20260102-digits-7"
        if self.error == "not started":
            raise RuntimeError("flwr run has failed: no address")
        write_run(directory, self.cell)
        with (directory / "metrics.jsonl").open("w") as file:
            for part in (LINE_1[:9], LINE_1[9:] + LINE_2[:-1], "\n"):
                file.write(part)
                file.flush()
                on_log_line("\x1b[92mINFO\x1b[0m: a line")
                self.rounds_at_line.append(list(self.seen_rounds))
        if self.error:
            (directory / "summary.json").unlink()
            on_log_line(self.error)
        return "7"

    def outcome(self, run_id: str, output_dir: Path) -> RunOutcome:
        return RunOutcome(False, "finished:failed", None)

    def run(self, results: GridResults) -> CellOutcome:
        self.cell = results.cells[0]
        runner = flower_cell_runner([cast(SuperLink, self)], 0.5)
        folder = results.folder / "running"
        folder.mkdir()

        def listen(record: RoundRecord) -> None:
            self.seen_rounds.append(record.server_round)

        return runner(self.cell, folder, listen)


@pytest.fixture
def results(tmp_path: Path) -> GridResults:
    return make_grid(tmp_path / "out")


def test_rounds_are_reported_when_their_records_are_complete(
    results: GridResults, tmp_path: Path
) -> None:
    superlink = FakeSuperLink(tmp_path)
    outcome = superlink.run(results)
    assert superlink.rounds_at_line == [[], [1], [1, 2]]
    assert outcome.directory == results.folder / "running" / "20260102-digits-7"
    assert (outcome.reason, outcome.log[1]) == ("", "INFO: a line")
    cell = results.cells[0]
    expected = {"run_config": cell.run_config, "nodes": 10, "workers": 3, "gpus": 0.5}
    assert superlink.options == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("(pid=3) ValueError: too few images", "(pid=3) ValueError: too few images"),
        ("the end", "finished:failed"),
        ("not started", "flwr run has failed: no address"),
    ],
)
def test_the_reason_of_a_failure(
    results: GridResults, tmp_path: Path, error: str, reason: str
) -> None:
    outcome = FakeSuperLink(tmp_path, error).run(results)
    assert (outcome.directory, outcome.reason) == (None, reason)


@pytest.mark.parametrize("error", ["the end", "not started"])
def test_a_dead_superlink_is_not_a_failure_of_the_cell(
    results: GridResults, tmp_path: Path, error: str
) -> None:
    with pytest.raises(SuperLinkDiedError, match=r"its last lines:\nport taken$"):
        FakeSuperLink(tmp_path, error, alive=False).run(results)


def run_failing(results: GridResults, error: Exception | CellOutcome) -> str:
    def runner(cell: Cell, folder: Path, listener: Any) -> CellOutcome:
        if isinstance(error, Exception):
            raise error
        return error

    return run_cell(results, results.cells[0], runner, lambda record: None)


def test_a_full_disk_ends_the_grid(
    results: GridResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFullError, match="no space left for"):
        run_failing(results, full)
    with pytest.raises(PermissionError):
        run_failing(results, PermissionError(errno.EACCES, "no"))
    line = "OSError: [Errno 28] No space left on device"
    with pytest.raises(DiskFullError, match=r"MB free for .*\[Errno 28\]"):
        run_failing(results, CellOutcome(None, line, ["...", line]))
    killed = CellOutcome(None, "killed", [])
    assert run_failing(results, killed) == "killed"
    monkeypatch.setattr(cell_run, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(DiskFullError, match="MB free"):
        run_failing(results, killed)
