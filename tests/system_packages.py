"""``python -m tests.system_packages``: install the programs that some tests start.

The tests of the report need a browser, those of the deployment a proxy and keys. Debian
packages are installed as root or with password-less sudo. Where neither is possible
nothing is installed, and ``tests/conftest.py`` skips the tests concerned.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

__all__ = ["PACKAGES", "find_program", "install_command", "missing_programs"]

BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
DEPLOYMENT = {
    "nginx": "nginx-light",
    "openssl": "openssl",
    "ssh-keygen": "openssh-client",
}
PACKAGES = BROWSER | DEPLOYMENT
"""The Debian package of every program that tests start."""


def find_program(name: str) -> str | None:
    """Return the path of a program; ``PATH`` of a normal user lacks ``/usr/sbin``."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join([path, "/usr/sbin", "/sbin"]))


def missing_programs(names: Iterable[str]) -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in names if find_program(name) is None]


def install_command(programs: Iterable[str]) -> list[str]:
    """Return the command that installs programs on Debian and its derivatives."""
    packages = [PACKAGES[program] for program in programs]
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def privilege() -> list[str] | None:
    """Return the prefix of a command that is run as root, or None without a way."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if shutil.which("sudo") and _succeeds([*sudo, "true"]):
        return sudo
    return None


def main() -> None:
    """Install what is missing, if this user may; otherwise do nothing."""
    missing = missing_programs(PACKAGES)
    prefix = privilege()
    if not missing or prefix is None or shutil.which("apt-get") is None:
        return
    packages = " ".join(PACKAGES[program] for program in missing)
    print(f"Installing Debian packages for the tests: {packages}", flush=True)  # noqa: T201
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive"]
    _succeeds([*apt, "apt-get", "update", "-qq"])
    # One group at a time: a distribution may lack a package of the other.
    for group in (BROWSER, DEPLOYMENT):
        if wanted := [program for program in missing if program in group]:
            _succeeds([*apt, *install_command(wanted), "-qq"])
    if missing := missing_programs(PACKAGES):
        print(f"Could not be installed: {', '.join(missing)}", file=sys.stderr)  # noqa: T201


def _succeeds(command: list[str]) -> bool:
    """Run a command; show its output only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and command[-1] != "true":
        sys.stderr.write(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    main()
