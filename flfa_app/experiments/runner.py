"""Runs the pending cells of a grid, several at a time, on SuperLinks of its own.

A call that is interrupted or killed loses only the cells in progress.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from flfa_app.experiments.cell_run import (
    RUNNING,
    CellRunner,
    SuperLinkDiedError,
    flower_cell_runner,
    run_cell,
)
from flfa_app.experiments.plan import Plan
from flfa_app.experiments.progress import GridProgress
from flfa_app.experiments.store import Cell, GridResults, write_grid
from flfa_app.files import exclusive_lock
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.processes import stop_processes
from flfa_app.launch.superlink import SuperLink, running_superlink

# One failure may be an accident. A second one without a finished cell in between means
# that every further start would fail, too.
MAX_CONSECUTIVE_FAILURES = 2
HOMES_FILE = "flower-home"

# Starts what runs cells and stops it in the end; started again if it dies.
CellEngine = Callable[[], AbstractContextManager[CellRunner]]


def run_plan(plan: Plan, engine: CellEngine, progress: GridProgress) -> dict[str, str]:
    """Run the pending cells; return the reasons of failed cells, by their id.

    Raises RuntimeError if no further cell could succeed: the disk is full, or the
    SuperLink dies.
    """
    failures: dict[str, str] = {}
    queue = deque(plan.pending)
    superlink_failures = 0
    while queue:
        queued = len(queue)
        running: dict[Future[str], Cell] = {}
        try:
            # The engine stops before the pool: its threads wait for the engine's runs.
            with ThreadPoolExecutor(plan.concurrent_cells) as pool, engine() as runner:
                while queue or running:
                    while queue and len(running) < plan.concurrent_cells:
                        cell = queue.popleft()
                        progress.show_start(cell)
                        listener = partial(progress.show_round, cell)
                        run = pool.submit(
                            run_cell, plan.results, cell, runner, listener
                        )
                        running[run] = cell
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        if reason := future.result():
                            failures[running[future].id] = reason
                        progress.show_end(running.pop(future), reason)
        except SuperLinkDiedError as error:
            queue.extendleft(
                cell for cell in running.values() if not plan.results.is_complete(cell)
            )
            superlink_failures = superlink_failures + 1 if len(queue) == queued else 1
            if superlink_failures == MAX_CONSECUTIVE_FAILURES:
                raise RuntimeError(f"{error}\n(twice in a row)") from error
            progress.print("The SuperLink has ended; starting it again ...")
    return failures


def flower_engine(plan: Plan, gpus: float) -> CellEngine:
    """Return an engine that runs cells with ``flwr run``.

    Each SuperLink keeps a Ray cluster for all of its cells, because starting Ray takes
    as long as training a small cell.
    """

    @contextmanager
    def start() -> Iterator[CellRunner]:
        file = plan.results.folder / HOMES_FILE
        with ExitStack() as stack:
            # Entered first, so the file is deleted after all SuperLinks have stopped.
            stack.callback(file.unlink, missing_ok=True)
            homes = [
                Path(stack.enter_context(TemporaryDirectory(prefix="flfa-"))).resolve()
                for _ in range(plan.concurrent_cells)
            ]
            # If this process is killed, the next call finds there what it has to stop.
            file.write_text("".join(f"{home}\n" for home in homes))

            def start_superlink(home: Path) -> SuperLink:
                return stack.enter_context(
                    running_superlink(SuperLink(home, PROJECT, plan.workers))
                )

            with ThreadPoolExecutor(len(homes)) as pool:  # all at the same time
                superlinks = list(pool.map(start_superlink, homes))
            yield flower_cell_runner(superlinks, gpus)

    return start


@contextmanager
def locked_folder(results: GridResults) -> Iterator[None]:
    """Lock a results folder for this process and write its ``grid.json``.

    Also stops the SuperLinks of a killed call and deletes what it has left.
    """
    folder = results.folder
    folder.mkdir(parents=True, exist_ok=True)
    message = f"{folder} is in use by another call; wait for it, or use --out"
    with exclusive_lock(folder, message):
        write_grid(results)
        file = folder / HOMES_FILE
        if file.is_file():
            for line in file.read_text().splitlines():
                stop_processes(Path(line))
                shutil.rmtree(line, ignore_errors=True)
            file.unlink()
        shutil.rmtree(folder / RUNNING, ignore_errors=True)
        yield
