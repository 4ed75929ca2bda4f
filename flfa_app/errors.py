"""Errors that users read: problems of a config, and the cause of a failed client."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CHARACTERS = 300


class ConfigError(ValueError):
    """The run config, or what it refers to, cannot be used.

    The text has the message and then all problems, one on each line. With a single
    problem the message may be the problem itself.
    """

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        lines = (f"\n  - {problem}" for problem in self.problems)
        super().__init__(message + "".join(lines))


def summarize_error(reason: str) -> str:
    """Return the last line of an error text that names an exception.

    Ray sends whole tracebacks, in which that line is the cause.
    """
    lines = [line.strip().rstrip("'>") for line in reason.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return truncate((named or lines or ["no reason given"])[-1])


def truncate(line: str) -> str:
    """Shorten a line to :data:`MAX_CHARACTERS`; lines of Ray can be far longer."""
    if len(line) <= MAX_CHARACTERS:
        return line
    return line[: MAX_CHARACTERS - 2].rstrip() + " …"
