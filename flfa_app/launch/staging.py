"""The files of the app, without all that lies beside them."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

__all__ = ["staged"]


def staged(source: Path, folder: Path) -> Path:
    """Copy the files that Flower would send to the nodes; return the folder.

    Flower itself looks at every file of a checkout to find them, a virtual environment
    included, and does so for every run.
    """
    pyproject = tomllib.loads((source / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["flwr"]["app"]["fab-include"]
    for pattern in ("pyproject.toml", *patterns):
        for file in source.glob(pattern.lstrip("/")):
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return folder
