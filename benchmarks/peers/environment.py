"""An environment for ``pfl``, apart from the one this project is tested in."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

from rich.console import Console

from flfa_app.data.cache import cache_folder

__all__ = ["default_folder", "pfl_python", "pfl_version"]

REQUIREMENT = "pfl[pytorch]==0.6.*"
# Written last, so that an interrupted installation is taken up again.
_MARK = "installed"


def default_folder() -> Path:
    """Return where it is kept: one for each environment it borrows from."""
    borrowed = "\n".join([REQUIREMENT, sys.version, *_site_packages()])
    name = hashlib.sha256(borrowed.encode()).hexdigest()[:16]
    return cache_folder() / f"peers-{name}"


def pfl_python(folder: Path) -> Path:
    """Return the Python of an environment with pfl; make it if it is not there.

    Parameters
    ----------
    folder : Path
        Of the environment.

    Raises
    ------
    RuntimeError
        If it cannot be installed, with what pip says.
    """
    python = folder / "bin" / "python"
    if (folder / _MARK).exists():
        return python
    Console(stderr=True).print(f"Installing {REQUIREMENT} into {folder}", markup=False)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    # Torch and all else that is here already is borrowed, not installed twice: what pip
    # installs there comes first, and pip removes nothing outside of its environment.
    # (--system-site-packages would be those of the Python this environment is made of.)
    own = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(own) / "borrowed.pth").write_text("\n".join(_site_packages()))
    _run([str(python), "-m", "pip", "install", "--quiet", REQUIREMENT])
    (folder / _MARK).touch()
    return python


def pfl_version(python: Path) -> str:
    """Return which pfl an environment has."""
    ask = "from importlib.metadata import version; print(version('pfl'))"
    return _run([str(python), "-c", ask]).strip()


def _site_packages() -> list[str]:
    return sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def _run(command: list[str]) -> str:
    """Run a command; return what it prints, raise with it if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} has failed:\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout
