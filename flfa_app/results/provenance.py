"""The versions of the code and of the packages that a run used."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

SOURCE = "FLFA_SOURCE"
"""The environment variable that names the checkout the app was started from."""
PACKAGES = ("flwr", "flwr-datasets", "torch", "torchvision", "ray", "numpy", "medmnist")


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
    packages = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages}


def git_commit(folder: Path) -> str | None:
    """Return the commit of the checkout in ``folder``, if this code comes from it.

    Flower runs a copy of the app without its Git history. The checkout is the folder
    that ``make run`` names, or the one where ``flwr run`` was called, unless the
    SuperLink was started elsewhere. With uncommitted changes the commit ends with
    ``-dirty``.
    """
    this_file = Path(__file__)
    # Flower copies the package unchanged: a different copy is a different version.
    source = folder.joinpath(*this_file.parts[-3:])
    if not source.is_file() or source.read_bytes() != this_file.read_bytes():
        return None
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    git += ["--exclude", "*"]  # the hash, not the name of a tag
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return None
    return done.stdout.strip() or None
