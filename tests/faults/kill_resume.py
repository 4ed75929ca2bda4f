"""``python -m tests.faults.kill_resume``: kill -9, resume, compare; many times.

Runs twelve rounds once without a disturbance. Then starts the same run again and again,
kills the process of the ServerApp with ``kill -9`` at a random moment, resumes the run,
and compares the global model, the best model and ``metrics.jsonl`` (without the
timings) bit for bit.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flfa_app.launch.superlink import SuperLink, local_superlink
from tests.faults.streamed_run import StreamedRun, find_by_command, kill
from tests.federation import ROOT, metrics

NODES, WORKERS = 8, 2
LONGER_THAN_A_ROUND = 1.0
ROUNDS = 12
KEYS: dict[str, Any] = {
    "num-server-rounds": ROUNDS,
    "local-epochs": 1,
    "norm": "batch",
    "pictures": False,
    "checkpoint-every": 2,
}


class Moment(NamedTuple):
    """When to kill: a number of seconds after a round."""

    server_round: int
    seconds: float


class Trial(NamedTuple):
    """A run that was killed after some rounds, and whether it ended with equal bits."""

    rounds: int
    same_bits: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        "python -m tests.faults.kill_resume", description=__doc__
    )
    parser.add_argument("--times", type=int, default=20, help="number of kills (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--algorithm", default="fedavg", help="the method (fedavg)")
    options = parser.parse_args(arguments)
    print(f"{ROUNDS} rounds of {options.algorithm}, killed {options.times} times")  # noqa: T201
    with (
        tempfile.TemporaryDirectory() as folder,
        local_superlink(ROOT, WORKERS) as superlink,
    ):
        trials = kill_and_resume(
            superlink, Path(folder), options.times, options.seed, options.algorithm
        )
    good = sum(trial.same_bits for trial in trials)
    print(f"{good} of {len(trials)} ended with the same bits")  # noqa: T201
    return 0 if good == len(trials) else 1


def kill_and_resume(
    superlink: SuperLink, folder: Path, times: int, seed: int, algorithm: str
) -> list[Trial]:
    """Kill and resume a run a number of times; return the result of each trial."""
    draw = random.Random(seed)
    trials: list[Trial] = []
    keys = KEYS | {"algorithm": algorithm, "state-dir": str(folder / "states")}
    undisturbed = run_to_end(superlink, folder / "undisturbed", keys)
    number = 0
    while len(trials) < times:
        number += 1
        parent = folder / str(number)
        keys |= {"state-dir": str(parent / "states")}
        moment = Moment(draw.randrange(ROUNDS), draw.uniform(0.0, LONGER_THAN_A_ROUND))
        rounds = start_and_kill(superlink, parent / "runs", keys, moment)
        if rounds is None:
            continue  # the run had ended already: try another moment
        run = run_to_end(superlink, parent / "runs", keys | {"resume": "auto"})
        same = metrics(run) == metrics(undisturbed) and all(
            (run / name).read_bytes() == (undisturbed / name).read_bytes()
            for name in ("model.safetensors", "best_model.safetensors")
        )
        trials.append(Trial(rounds, same))
        print(  # noqa: T201
            f"{len(trials):2d}  killed {moment.seconds:.2f} s after round "
            f"{moment.server_round} with {rounds} rounds done: "
            f"{'the same bits' if same else 'DIFFERENT'}",
            flush=True,
        )
    return trials


def start_and_kill(
    superlink: SuperLink, folder: Path, keys: dict[str, Any], moment: Moment
) -> int | None:
    """Kill a run's ServerApp; return its number of rounds, None if it had ended."""
    run = StreamedRun(superlink, folder, keys, NODES)
    run.wait_for(lambda: any(folder.glob("*/config.json")))
    run.wait_for_rounds(moment.server_round)
    time.sleep(moment.seconds)
    # In a simulation the ServerApp is a thread of this process.
    kill(*find_by_command(superlink, "flwr-simulation"))
    run.abandon()
    return None if any(folder.glob("*/summary.json")) else len(run.rows)


def run_to_end(superlink: SuperLink, folder: Path, keys: dict[str, Any]) -> Path:
    """Run until the summary is written; return the results folder."""
    run = StreamedRun(superlink, folder, keys, NODES)
    run.join()
    found = [file.parent for file in folder.glob("*/summary.json")]
    assert len(found) == 1, run.log
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
