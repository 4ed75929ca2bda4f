"""Files that are complete and on the disk, or not there; locks on folders."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout


def write_atomically(path: Path, content: bytes, *, concurrent: bool = False) -> None:
    """Write a file that is either complete and on the disk, or unchanged.

    With ``concurrent``, several processes may write this file at the same time. The
    last one wins; a process that is killed leaves a temporary file that nobody reuses.
    On a full disk it raises :class:`OSError`, and no part of the file is left.
    """
    unique = f".{uuid4().hex}" if concurrent else ""
    unfinished = path.with_name(f".{path.name}{unique}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # free the space on a full disk
        raise
    flush_folder(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; nan and infinity become null."""
    text = json.dumps(replace_non_finite(content), indent=2, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def replace_non_finite(value: Any) -> Any:
    """Return a JSON value with null (None) in place of nan and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return value


def append_line(path: Path, line: str) -> None:
    """Append a line to a file; it is on the disk when this returns.

    On a full disk it raises :class:`OSError`, and no part of the line is left.
    """
    length = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        # Only after the file is closed: closing tries once more to write the rest.
        if path.exists():
            os.truncate(path, length)
        raise


def flush_folder(folder: Path) -> None:
    """Make sure that the names of the files in a folder are on the disk."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_round_files(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files ``round-000012<suffix>`` of a folder by their round."""
    name = re.compile(rf"round-([0-9]{{6}}|[1-9][0-9]{{6,}}){re.escape(suffix)}")
    matches = ((name.fullmatch(path.name), path) for path in folder.glob("round-*"))
    return {int(match[1]): path for match, path in matches if match}


@contextmanager
def exclusive_lock(folder: Path, message: str) -> Iterator[None]:
    """Lock a folder; the operating system releases it if this process is killed.

    Raises :class:`RuntimeError` with this message if another process or thread holds
    the lock.
    """
    try:
        lock = FileLock(folder / ".lock").acquire(blocking=False)
    except Timeout:
        raise RuntimeError(message) from None
    with lock:
        yield
