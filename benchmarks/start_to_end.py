"""``python -m benchmarks.start_to_end``: the embedded default, from the command on.

``flwr run . --stream`` as a person types it, with an empty Flower home, so that it
starts a SuperLink first, and ``make run``'s command, with 20 nodes. Everything is
installed already, and nothing is installed for the run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.figures import of_measurements, output_file, publish
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import positive_int
from flfa_app.launch.processes import flower_environment, free_port, stop_processes

__all__ = ["main"]

GOAL = "<= 60"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the goal is missed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.start_to_end", description=__doc__
    )
    parser.add_argument(
        "--turns", type=positive_int, default=3, help="runs of each (3)"
    )
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    commands = {
        "`flwr run . --stream`": ["flwr", "run", ".", "--stream"],
        "`make run`": [sys.executable, "-m", "flfa_app.launch"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.turns):
        for name, command in commands.items():
            seconds[name].append(_seconds(command))
            Console(stderr=True).print(f"{name}: {seconds[name][-1]:.1f} s")
    title = "the embedded default, start to finish"
    figures = [
        of_measurements(f"{name}, {title}", taken, GOAL, "s")
        for name, taken in seconds.items()
    ]
    return publish(figures, options.json)


def _seconds(command: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        home, results = Path(folder) / "home", Path(folder) / "runs"
        home.mkdir()
        environment = flower_environment(home.resolve())
        port = str(free_port())
        environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = port
        environment["FLWR_LOCAL_CONTROL_API_PORT"] = port
        started = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, "--run-config", f"output-dir='{results}'"],
                cwd=PROJECT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            taken = time.perf_counter() - started
            if not any(results.glob("*/summary.json")):
                raise RuntimeError(f"the run has failed:\n{done.stdout}{done.stderr}")
        finally:
            stop_processes(home.resolve())
    return taken


if __name__ == "__main__":
    sys.exit(main())
