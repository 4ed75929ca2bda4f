"""``python -m tests.faults.kill_resume``: kill -9, go on, compare; many times.

Runs twelve rounds once without a disturbance. Then, again and again, begins the same
run, kills the process of the ServerApp with ``kill -9`` at a moment drawn at random,
goes on with ``resume``, and compares the global model, the best model and
``metrics.jsonl`` (without the timings), bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flfa_app.launch.superlink import SuperLink, local_superlink
from tests.faults.processes import Followed, processes
from tests.federation import ROOT, metrics

NODES, WORKERS = 8, 2
LONGER_THAN_A_ROUND = 1.0
KEYS: dict[str, Any] = {
    "num-server-rounds": 12,
    "local-epochs": 1,
    "norm": "batch",
    "pictures": False,
    "checkpoint-every": 2,
}


class Moment(NamedTuple):
    """When to kill: so many seconds after a round."""

    server_round: int
    seconds: float


class Shot(NamedTuple):
    """A run that was killed after so many rounds, and whether it ended the same."""

    rounds: int
    same: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        "python -m tests.faults.kill_resume", description=__doc__
    )
    parser.add_argument("--times", type=int, default=20, help="how often (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--algorithm", default="fedavg", help="the method (fedavg)")
    options = parser.parse_args(arguments)
    print(f"12 rounds of {options.algorithm}, killed {options.times} times")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        shots = kill_and_resume(
            Path(folder), options.times, options.seed, options.algorithm
        )
    good = sum(shot.same for shot in shots)
    print(f"{good} of {len(shots)} ended with the same bits")  # noqa: T201
    return 0 if good == len(shots) else 1


def kill_and_resume(
    folder: Path, times: int, seed: int, algorithm: str = "fedavg"
) -> list[Shot]:
    """Kill and go on so many times; return how each has ended."""
    draw = random.Random(seed)
    shots = []
    with local_superlink(ROOT, WORKERS) as superlink:
        keys = KEYS | {
            "algorithm": algorithm,
            "state-dir": str(folder / "whole states"),
        }
        whole = finished(superlink, folder / "whole", keys)
        number = 0
        while len(shots) < times:
            number += 1
            parent = folder / str(number)
            keys = keys | {"state-dir": str(parent / "states")}
            moment = Moment(draw.randrange(12), draw.uniform(0.0, LONGER_THAN_A_ROUND))
            rounds = killed(superlink, parent / "runs", keys, moment)
            if rounds is None:
                continue  # it had ended: another moment
            run = finished(superlink, parent / "runs", keys | {"resume": "auto"})
            same = metrics(run) == metrics(whole) and all(
                (run / name).read_bytes() == (whole / name).read_bytes()
                for name in ("model.safetensors", "best_model.safetensors")
            )
            shots.append(Shot(rounds, same))
            print(  # noqa: T201
                f"{len(shots):2d}  killed {moment.seconds:.2f} s after round "
                f"{moment.server_round}: {'same' if same else 'DIFFERENT'}",
                flush=True,
            )
    return shots


def killed(
    superlink: SuperLink, folder: Path, keys: dict[str, Any], moment: Moment
) -> int | None:
    """Kill a run's ServerApp; return how many rounds it had done, None if all."""
    run = Followed(superlink, folder, keys, NODES)
    run.wait_for(lambda: any(folder.glob("*/config.json")))
    run.wait_for_rounds(moment.server_round)
    time.sleep(moment.seconds)
    # In a simulation the ServerApp is a thread of this one.
    for pid in processes(superlink, "flwr-simulation"):
        os.kill(pid, signal.SIGKILL)
    run.abandon()
    return None if any(folder.glob("*/summary.json")) else len(run.rows)


def finished(superlink: SuperLink, folder: Path, keys: dict[str, Any]) -> Path:
    """Run to a good end; return the results."""
    run = Followed(superlink, folder, keys, NODES)
    run.join()
    found = [file.parent for file in folder.glob("*/summary.json")]
    assert len(found) == 1, run.log
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
