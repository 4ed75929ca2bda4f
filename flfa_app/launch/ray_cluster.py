"""One Ray cluster for several simulations that run one after another.

Starting Ray takes as long as the training of a small run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["start_ray", "wait_for_address"]

_LOG = "ray.log"
# Ray ends with the process that has started it. That process ends when its standard
# input is closed, so at the latest with its parent.
_PROGRAM = """
import sys
import ray
ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, logging_level="WARNING")
print("address", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def start_ray(
    workers: int, environment: Mapping[str, str], folder: Path
) -> subprocess.Popen[str]:
    """Start Ray for a number of workers; it ends with the process returned."""
    with (folder / _LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(workers)],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Ctrl-C goes to the launcher, which then stops Ray.
            start_new_session=True,
        )


def wait_for_address(ray: subprocess.Popen[str], folder: Path) -> str:
    """Wait until Ray has started; return its address, for ``RAY_ADDRESS``."""
    assert ray.stdout is not None
    for line in ray.stdout:
        if line.startswith("address "):
            return line.removeprefix("address ").strip()
    log = (folder / _LOG).read_text(errors="replace")
    raise RuntimeError(f"Ray has not started:\n{log}")
