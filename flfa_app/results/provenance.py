"""Which version of the code made a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["SOURCE", "git_commit"]

SOURCE = "FLFA_SOURCE"
"""The environment variable that names the checkout the app was started from."""


def git_commit(folder: Path) -> str | None:
    """Return the commit of the checkout in ``folder``, if this code comes from it.

    Flower runs a copy of the app, without its history; the checkout is where ``make
    run`` says, or where ``flwr run`` was called, unless the SuperLink was started
    somewhere else. With changes that are not committed it ends with ``-dirty``.
    """
    here = Path(__file__)
    # Flower copies the package as it is, so this file tells one version from another.
    source = folder.joinpath(*here.parts[-3:])
    if not source.is_file() or source.read_bytes() != here.read_bytes():
        return None
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    git += ["--exclude", "*"]  # the hash, not the name of a tag
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return None
    return done.stdout.strip() or None
