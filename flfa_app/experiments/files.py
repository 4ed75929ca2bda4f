"""Atomic writing of JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["write_json"]


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is either complete or not there."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=2) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)
