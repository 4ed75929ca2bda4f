"""Files: the checkout, the copy of the app that Flower runs, the results of a run."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flfa_app.config import AUTO, KEYS

__all__ = [
    "PROJECT",
    "absolute_paths",
    "copy_app",
    "default_run_config",
    "find_results",
]

PROJECT = Path(__file__).resolve().parents[2]


def default_run_config() -> dict[str, Any]:
    """Return the run config of ``pyproject.toml``."""
    pyproject = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return dict(pyproject["tool"]["flwr"]["app"]["config"])


def copy_app(source: Path, folder: Path) -> Path:
    """Copy the files of the Flower app bundle from a checkout; return the folder."""
    pyproject = tomllib.loads((source / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["flwr"]["app"]["fab-include"]
    for pattern in ("pyproject.toml", *patterns):
        for file in source.glob(pattern.lstrip("/")):
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return folder


def find_results(run_id: str, output_dir: Path) -> Path | None:
    """Return the results folder of a run, or None before the run has created it."""
    for file in output_dir.glob("*/config.json"):
        # The folder of a resumed run has the id of the first run in its name.
        if file.parent.name.endswith(f"-{run_id}") or run_id in json.loads(
            file.read_text()
        ).get("run-ids", ()):
            return file.parent
    return None


def absolute_paths(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config with absolute paths: Flower runs in another folder.

    Keys that this app does not have stay as they are: they may be of another app.
    """
    return {
        key: str(Path(value).expanduser().resolve())
        if key in KEYS and KEYS[key].is_path and value not in ("", AUTO)
        else value
        for key, value in run_config.items()
    }
