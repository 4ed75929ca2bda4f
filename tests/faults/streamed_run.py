"""Runs on Flower whose processes a test kills."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flfa_app.launch.processes import find_processes
from flfa_app.launch.superlink import SuperLink


class StreamedRun:
    """A run whose log a thread reads while the test kills its processes."""

    def __init__(
        self, superlink: SuperLink, folder: Path, keys: dict[str, Any], nodes: int
    ) -> None:
        self.superlink = superlink
        self.folder = folder
        self.lines: list[str] = []
        self.run_id = ""

        def stream() -> None:
            self.run_id = superlink.stream_run(
                run_config=keys,
                nodes=nodes,
                workers=superlink.ray_workers or 2,
                output_dir=folder,
                on_log_line=self.lines.append,
            )

        self.thread = threading.Thread(target=stream, daemon=True)
        self.thread.start()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rounds so far, without a line that is being written."""
        rows = []
        for file in self.folder.glob("*/metrics.jsonl"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    rows.append(json.loads(line))
        return rows

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, condition: Callable[[], Any], timeout: float = 180.0) -> Any:
        """Wait until a condition holds; return its value."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert self.thread.is_alive(), f"the run has ended:\n{self.log}"
            assert time.monotonic() < deadline, f"timeout:\n{self.log}"
            time.sleep(0.1)
        return value

    def wait_for_rounds(self, number: int) -> None:
        self.wait_for(lambda: len(self.rows) >= number)

    def join(self, timeout: float = 180.0) -> None:
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"the run has not ended:\n{self.log}"

    def abandon(self) -> None:
        """Stop reading: Flower takes a minute to notice that a run has died."""
        for stream in list(self.superlink.log_streams):
            stream.terminate()
        self.join()


def find_by_command(superlink: SuperLink, program: str) -> set[int]:
    """The processes of a SuperLink's home whose command line contains a text."""
    found = set()
    for pid in find_processes(superlink.home):
        with suppress(psutil.Error):  # it may have ended
            if program in " ".join(psutil.Process(pid).cmdline()):
                found.add(pid)
    return found


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
