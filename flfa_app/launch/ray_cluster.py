"""A Ray that several simulations use, one after another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["address_of", "start_ray"]

_LOG = "ray.log"
# Ray ends with the process that has started it, and that when nobody holds its input.
_KEEPER = """
import sys
import ray
ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, logging_level="WARNING")
print("address", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def start_ray(
    workers: int, environment: Mapping[str, str], folder: Path
) -> subprocess.Popen[str]:
    """Start Ray for this many workers; it ends with the process, or with this one."""
    with (folder / _LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _KEEPER, str(workers)],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever stops it in order
        )


def address_of(ray: subprocess.Popen[str], folder: Path) -> str:
    """Wait until Ray has started; return its address, for ``RAY_ADDRESS``."""
    assert ray.stdout is not None
    for line in ray.stdout:
        if line.startswith("address "):
            return line.removeprefix("address ").strip()
    log = (folder / _LOG).read_text(errors="replace")
    raise RuntimeError(f"Ray has not started:\n{log}")
