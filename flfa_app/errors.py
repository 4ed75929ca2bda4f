"""Errors a person reads: config problems, and the cause of a client's failure."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["ConfigError", "summarize_error", "truncate"]

MAX_CHARACTERS = 300


class ConfigError(ValueError):
    """The run config, or what it refers to, cannot be used.

    Parameters
    ----------
    message : str
        What cannot be done, or the only problem.
    problems : Iterable[str]
        All problems found. They follow the message, one on each line.
    """

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        lines = (f"\n  - {problem}" for problem in self.problems)
        super().__init__(message + "".join(lines))


def summarize_error(reason: str) -> str:
    """Return the line of an error text that names the exception.

    Ray sends whole tracebacks; the last line with an exception is the cause.
    """
    lines = [line.strip().rstrip("'>") for line in reason.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return truncate((named or lines or ["no reason given"])[-1])


def truncate(line: str) -> str:
    """Shorten a line to :data:`MAX_CHARACTERS`; Ray's can be thousands long."""
    if len(line) <= MAX_CHARACTERS:
        return line
    return line[: MAX_CHARACTERS - 2].rstrip() + " …"
