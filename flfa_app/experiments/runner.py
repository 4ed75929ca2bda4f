"""Runs the cells of a grid: some at a time, each once, whatever happens to a call."""

from __future__ import annotations

import fcntl
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from flfa_app.experiments.attempt import RUNNING, Attempt, try_cell
from flfa_app.experiments.flower import SuperLinkDiedError, flower_attempt
from flfa_app.experiments.plan import Plan
from flfa_app.experiments.progress import Progress
from flfa_app.experiments.store import Cell, Results, write_grid
from flfa_app.launch.cli import PROJECT
from flfa_app.launch.processes import stop
from flfa_app.launch.superlink import SuperLink, started

__all__ = ["Engine", "flower_engine", "results_folder", "run_plan"]

# The SuperLink may end once by an accident; the second time without a finished cell in
# between is not one.
DEATHS = 2
HOME = "flower-home"

Engine = Callable[[], AbstractContextManager[Attempt]]
"""Starts what runs cells, and stops it; started again if it dies."""


def run_plan(plan: Plan, engine: Engine, progress: Progress) -> dict[str, str]:
    """Run what is to do; return why cells have failed, by their id.

    Raises
    ------
    RuntimeError
        If there is no point in going on: the disk is full, or the SuperLink dies.
    """
    failed: dict[str, str] = {}
    left = deque(plan.to_do)
    deaths = 0
    while left:
        before = len(left)
        running: dict[Future[str], Cell] = {}
        try:
            # The engine is stopped first: the threads wait for what it has started.
            with ThreadPoolExecutor(plan.cells_at_a_time) as pool, engine() as attempt:
                for cell, reason in _run_some(
                    plan, left, running, pool, attempt, progress
                ):
                    progress.ended(cell, reason)
                    if reason:
                        failed[cell.id] = reason
        except SuperLinkDiedError as problem:
            left.extendleft(c for c in running.values() if not plan.results.is_done(c))
            deaths = deaths + 1 if len(left) == before else 1
            if deaths == DEATHS:
                raise RuntimeError(f"{problem}\n(twice in a row)") from problem
            progress.note("The SuperLink has ended; starting it again ...")
    return failed


def _run_some(
    plan: Plan,
    left: deque[Cell],
    running: dict[Future[str], Cell],
    pool: ThreadPoolExecutor,
    attempt: Attempt,
    progress: Progress,
) -> Iterator[tuple[Cell, str]]:
    """Run cells until none is left; yield each with the reason if it has failed."""

    def run(cell: Cell) -> str:
        return try_cell(
            plan.results, cell, attempt, lambda line: progress.line(cell, line)
        )

    while left or running:
        while left and len(running) < plan.cells_at_a_time:
            cell = left.popleft()
            # An attempt that something has ended may have left a part of itself.
            shutil.rmtree(plan.results.folder / RUNNING / cell.id, ignore_errors=True)
            progress.started(cell)
            running[pool.submit(run, cell)] = cell
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            reason = future.result()
            yield running.pop(future), reason


def flower_engine(plan: Plan, gpus: float) -> Engine:
    """Return what runs cells with ``flwr run``, on SuperLinks with a Ray of their own.

    Starting Ray takes as long as the training of a small cell: it is kept for all that
    run there one after another.
    """

    @contextmanager
    def start() -> Iterator[Attempt]:
        with ExitStack() as stack:
            homes = stack.enter_context(_remembered_homes(plan))

            def one(home: Path) -> SuperLink:
                return stack.enter_context(
                    started(SuperLink(home, PROJECT, plan.workers))
                )

            with ThreadPoolExecutor(len(homes)) as pool:  # they start at the same time
                superlinks = list(pool.map(one, homes))
            yield flower_attempt(superlinks, gpus)

    return start


@contextmanager
def _remembered_homes(plan: Plan) -> Iterator[list[Path]]:
    """Make a home for each SuperLink, known to the next call before one is started.

    This process may be killed at any moment, and then it cannot stop them.
    """
    file = plan.results.folder / HOME
    with ExitStack() as stack:
        # First in, last out: when they are stopped there is none to remember.
        stack.callback(file.unlink, missing_ok=True)
        homes = [
            Path(stack.enter_context(TemporaryDirectory(prefix="flfa-"))).resolve()
            for _ in range(plan.cells_at_a_time)
        ]
        file.write_text("".join(f"{home}\n" for home in homes))
        yield homes


@contextmanager
def results_folder(results: Results) -> Iterator[None]:
    """Take a results folder for this process; clean up after one that was killed."""
    folder = results.folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"{folder} is in use by another call; wait for it, or use --out"
            ) from None
        write_grid(results)
        _stop_leftovers(folder)
        shutil.rmtree(folder / RUNNING, ignore_errors=True)
        yield


def _stop_leftovers(folder: Path) -> None:
    """Stop the SuperLinks of a call that was killed: nobody reads its results."""
    if (folder / HOME).is_file():
        for line in (folder / HOME).read_text().splitlines():
            stop(Path(line))
            shutil.rmtree(line, ignore_errors=True)
        (folder / HOME).unlink()
