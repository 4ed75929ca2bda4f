"""Runs whose processes are killed: follow them, find them, wait for what they do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flfa_app.launch.processes import find_processes
from flfa_app.launch.superlink import SuperLink


class Followed:
    """A run that is followed by a thread while the test does something to it."""

    def __init__(
        self, superlink: SuperLink, folder: Path, keys: dict[str, Any], nodes: int
    ) -> None:
        self.superlink = superlink
        self.folder = folder
        self.lines: list[str] = []
        self.run_id = ""

        def follow() -> None:
            self.run_id = superlink.stream_run(
                run_config=keys,
                nodes=nodes,
                workers=superlink.ray_workers or 2,
                output_dir=folder,
                on_log_line=self.lines.append,
            )

        self.thread = threading.Thread(target=follow, daemon=True)
        self.thread.start()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rounds so far; a line that is being written is none yet."""
        rows = []
        for file in self.folder.glob("*/metrics.jsonl"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    rows.append(json.loads(line))
        return rows

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, what: Callable[[], Any], timeout: float = 180.0) -> Any:
        """Return what is not false as soon as it is so."""
        deadline = time.monotonic() + timeout
        while not (found := what()):
            assert self.thread.is_alive(), f"the run has ended:\n{self.log}"
            assert time.monotonic() < deadline, f"nothing happens:\n{self.log}"
            time.sleep(0.02)
        return found

    def wait_for_rounds(self, number: int) -> None:
        self.wait_for(lambda: len(self.rows) >= number)

    def join(self, timeout: float = 180.0) -> None:
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"the run goes on:\n{self.log}"

    def abandon(self) -> None:
        """Stop following: Flower notices after a minute that a run has died."""
        for follower in list(self.superlink.log_streams):
            follower.terminate()
        self.join()


def processes(superlink: SuperLink, program: str) -> set[int]:
    """The processes of a SuperLink's home whose command has this in it."""
    found = set()
    for pid in find_processes(superlink.home):
        with suppress(OSError):  # it may have ended
            if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found
