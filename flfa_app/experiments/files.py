"""The JSON files of a results folder; what cannot be read is named, with the cure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flfa_app.errors import ConfigError
from flfa_app.results.records import RoundRecord, read_records

__all__ = ["read_json", "read_rounds", "write_json"]


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is either complete or not there."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=2) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)


def read_json(file: Path, cure: str) -> dict[str, Any]:
    """Return the object in a file; ``cure`` says what to do if there is none."""
    try:
        return _parsed(file.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise _unreadable(file, problem, cure) from problem


def read_rounds(file: Path, cure: str) -> list[RoundRecord]:
    """Return the rounds in the lines of a file."""
    try:
        return read_records(file)
    except (OSError, ValueError) as problem:
        raise _unreadable(file, problem, cure) from problem


def _parsed(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def _unreadable(file: Path, problem: Exception, cure: str) -> ConfigError:
    # The whole text of an OSError repeats the file.
    why = getattr(problem, "strerror", None) or problem
    return ConfigError(f"{file} cannot be read: {why}; {cure}")
