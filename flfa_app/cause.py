"""What a client says has gone wrong, in one line."""

from __future__ import annotations

import re

__all__ = ["cause", "shortened"]

MOST_CHARACTERS = 300


def cause(reason: str) -> str:
    """Return the last line of an error that names one: Ray sends whole tracebacks."""
    lines = [line.strip().rstrip("'>") for line in reason.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return shortened((named or lines or ["no reason given"])[-1])


def shortened(line: str) -> str:
    """Cut a line that nobody would read to its end: Ray's are thousands long."""
    if len(line) <= MOST_CHARACTERS:
        return line
    return line[: MOST_CHARACTERS - 2].rstrip() + " …"
