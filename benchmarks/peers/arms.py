"""The arms: each trains the work in processes of its own, from start to end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.work import CLIENTS, WORKERS, Work
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.processes import stop_processes
from flfa_app.launch.superlink import RunOutcome, local_superlink
from flfa_app.results.records import read_records

__all__ = ["Arm", "Trained", "ours", "pfl", "quickstart"]

_HERE = Path(__file__).parent
_QUICKSTART = _HERE / "quickstart"


class Trained(NamedTuple):
    """The seconds of each round, and the weights after the last."""

    seconds: list[float]
    weights: Path


Arm = Callable[[Work, Path], Trained]


def ours(work: Work, folder: Path, flfa: str = "none") -> Trained:
    """Train with our app."""
    outcome = _flower(PROJECT, {**work.keys, "flfa": flfa}, folder)
    assert outcome.results is not None
    records = read_records(outcome.results / "metrics.jsonl")
    if failed := {r.server_round: r.failed for r in records if r.failed}:
        raise RuntimeError(f"our app: clients have failed, by round: {failed}")
    seconds = [record.timing.without_evaluation for record in records]
    return Trained(seconds, outcome.results / "model.safetensors")


def quickstart(work: Work, folder: Path) -> Trained:
    """Train with Flower's FedAvg, as its quickstart does."""
    _flower(_QUICKSTART, {"work-dir": str(work.folder)}, folder)
    return _trained(folder)


def pfl(work: Work, folder: Path, python: Path) -> Trained:
    """Train with pfl, in the environment of this Python."""
    command = [str(python), "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={WORKERS}", f"--log-dir={folder}"]
    command += [str(_HERE / "pfl_training.py"), "--work-dir", str(work.folder)]
    command += ["--output-dir", str(folder)]
    environment = {
        **os.environ,
        # The models and the reading of the work are the other peer's.
        "PYTHONPATH": str(_QUICKSTART),
        # By it all that torchrun and pfl have started is found and stopped.
        "FLWR_HOME": str(folder),
    }
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which then stops it
    ) as process:
        try:
            output, _ = process.communicate()
        finally:
            stop_processes(folder, process)
    if process.returncode:
        raise RuntimeError(f"the training on pfl has failed:\n{output}")
    return _trained(folder)


def _flower(app: Path, keys: dict[str, Any], folder: Path) -> RunOutcome:
    log: list[str] = []
    # Started for each run, so that nothing of one arm is there while another trains.
    with local_superlink(app) as superlink:
        outcome = superlink.run(
            run_config=keys,
            nodes=CLIENTS,
            workers=WORKERS,
            output_dir=folder,
            on_log_line=log.append,
        )
    if not outcome.completed:
        lines = "\n".join(log)
        raise RuntimeError(f"{lines}\nthe run of {app} has failed: {outcome.details}")
    return outcome


def _trained(folder: Path) -> Trained:
    seconds = json.loads((folder / "seconds.json").read_text())
    return Trained(seconds, folder / "final.safetensors")
