"""The log of a run: what the terminal shows of it, and the file of a failed run."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

from flfa_app.files import write_atomically

__all__ = ["RunLog", "strip_colours"]

# How the lines that the ServerApp logs at level INFO begin. Flower's are not shown.
APP_PREFIXES = (
    "round ",
    "Results: ",
    "Score: ",
    "Waiting for nodes",
    "Resuming after",
    "Stopping early",
    "Clients restore",
    "partition ",
)
# Warnings and errors that Flower and Ray log in every run, or in every failed run.
IGNORED_WARNINGS = (
    "default simulated SuperNodes changed",
    "Manually terminating ClientAppActor",
    "Exit Code: 700",
    "Simulation raised an exception",
    "Traceback (most recent call last)",
    "ray::ClientAppActor",
)


def strip_colours(line: str) -> str:
    """Return a line without the terminal's escape sequences for colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


class RunLog:
    """Keeps every line of a run's log and prints those that a user follows.

    These are the app's own lines, and the warnings and errors of Flower. A warning that
    every worker repeats is printed once, and tracebacks are not printed.

    Parameters
    ----------
    verbose : bool
        Print every line.
    """

    def __init__(self, verbose: bool) -> None:
        self.lines: list[str] = []
        self._verbose = verbose
        self._console = Console(highlight=False, soft_wrap=True)
        self._printed: set[str] = set()

    def add(self, line: str) -> None:
        """Take the next line."""
        plain = strip_colours(line)
        self.lines.append(plain)
        if self._verbose:
            self._console.print(plain, markup=False)
            return
        found = re.match(r"(?:\(.*?\) )?(INFO|WARNING|ERROR)\s*:\s*(.*)", plain)
        level, text = found.groups() if found else ("", "")
        if level == "INFO" and text.startswith(APP_PREFIXES):
            self._console.print(text, markup=False)
        elif level in ("WARNING", "ERROR") and text and text not in self._printed:
            self._printed.add(text)
            if not any(ignored in text for ignored in IGNORED_WARNINGS):
                self._console.print(f"{level}: {text}", markup=False, style="yellow")

    def save(self, file: Path) -> str:
        """Write all lines to a file; return a sentence that says where they are."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, "\n".join(self.lines).encode())
        except OSError as problem:
            # The disk may be full. The error that ended the run has to be shown anyway.
            return (
                f"Flower's log could not be written to {file} "
                f"({problem.strerror}); --verbose shows it while it runs"
            )
        return f"Everything Flower logged: {file}"
