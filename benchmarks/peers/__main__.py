"""``python -m benchmarks.peers``: a round of our app, of pfl and of stock Flower.

The paper's BloodMNIST setting on images of that size: 100 clients, ten of them a round,
about 120 images each, batch 64, five epochs, FedAvg, two workers of one thread. All
arms start from the same weights and train the same clients on the same batches. They
take turns; the first round of each run is not counted (processes start, kernels are
chosen), and a round is compared with the same round of the same turn. It is training
and aggregation, of our app what metrics.jsonl calls so; nothing is evaluated before the
end.

That the arms do the same is checked: the updates of a round with a tiny learning rate,
which keeps rounding small, and the accuracy at the end, where that can be asked.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console

from benchmarks.figures import output_file, rows_of
from benchmarks.peers.environment import default_folder, pfl_python, pfl_version
from benchmarks.peers.report import GOALS, figures_of, missed, table_of
from benchmarks.peers.turns import WARM_UP, arms_with, measure
from benchmarks.peers.work import CLIENTS, NORMS, WORKERS
from benchmarks.timing import machine
from flfa_app.data.cache import CACHE_VARIABLE
from flfa_app.launch.cli import positive_int, run_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--model", choices=NORMS, help="measure this one only (default: all)"
    )
    parser.add_argument("--turns", type=positive_int, default=2, help="of each arm (2)")
    parser.add_argument(
        "--rounds", type=positive_int, default=2, help="of a turn that count (2)"
    )
    parser.add_argument(
        "--env-dir", type=Path, help="environment with pfl (default: in the cache)"
    )
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    python = pfl_python((options.env_dir or default_folder()).absolute())
    models = [options.model] if options.model else list(NORMS)
    rows: list[dict[str, Any]] = []
    # The cache of the data, too, is gone afterwards.
    with (
        tempfile.TemporaryDirectory(prefix="flfa-peers-") as folder,
        patch.dict("os.environ", {CACHE_VARIABLE: f"{folder}/cache"}),
    ):
        for model in models:
            rows += measure(
                model,
                Path(folder).resolve(),
                arms_with(python),
                options.turns,
                options.rounds,
            )
    if options.json:
        content = {
            "model": models[0] if len(models) == 1 else models,
            "machine": {**machine(), "pfl": pfl_version(python)},
            "clients": CLIENTS,
            "workers": WORKERS,
            "turns": options.turns,
            "rounds": {"counted": options.rounds, "before": WARM_UP},
            "goals": GOALS,
            "rows": rows,
            "figures": rows_of(figures_of(rows)),
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    Console(highlight=False, soft_wrap=True).print(table_of(rows), markup=False)
    if below := missed(rows):
        raise RuntimeError(f"below the goal: {'; '.join(below)}")


if __name__ == "__main__":
    sys.exit(main())
