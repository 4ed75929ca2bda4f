"""``python -m flfa_app.deploy_demo``: a federation with TLS and node keys, to look at.

A SuperLink and three SuperNodes on this machine, each with data of its own, run FLFA
for a few rounds; then all of it is stopped and removed. On several machines the same
is ``docs/deployment.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from flfa_app.config import RunConfig
from flfa_app.data import OwnImages
from flfa_app.launch.cli import (
    PROJECT,
    at_least_one,
    default_keys,
    launch,
    read_overrides,
    reporting_errors,
)
from flfa_app.launch.deployment import Deployment, local_deployment
from flfa_app.task import images_of, shards_of

__all__ = ["main", "parts_of", "run_on"]

# A round of real nodes takes seconds however little there is to do, so few of them.
FEW_ROUNDS: dict[str, Any] = {"num-server-rounds": 3, "fraction-train": 1.0}


def parts_of(config: RunConfig, nodes: int) -> list[OwnImages]:
    """Return what each of so many nodes holds of the run's data set."""
    images = images_of(config)
    return [
        OwnImages(images.train[mine], images.train_labels[mine])
        for mine in shards_of(config, nodes)
    ]


def run_on(
    deployment: Deployment, options: argparse.Namespace, overrides: Mapping[str, Any]
) -> Path:
    """Run the app once, showing its progress; return the folder of its results.

    Raises
    ------
    RuntimeError
        If the run has failed; with what the nodes have to say.
    """
    kept = options.output_dir or overrides.get("output-dir")
    options.output_dir = Path(kept or deployment.home / "results")
    try:
        return launch(deployment, options, overrides)
    except RuntimeError as problem:
        what = str(problem)
        if not kept:  # the file it names will be gone
            what = what.partition("\nEverything Flower logged")[0]
        raise RuntimeError(f"{what}\n{deployment.last_words()}") from problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    name = "python -m flfa_app.deploy_demo"
    parser = argparse.ArgumentParser(name, description=__doc__)
    parser.add_argument("--nodes", type=at_least_one, default=3, help="SuperNodes (3)")
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="FILE|'KEY=VALUE ...'",
        help="override keys of [tool.flwr.app.config]; may be repeated",
    )
    parser.add_argument(
        "--output-dir", type=Path, help="keep the results, in a folder here"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show everything Flower logs"
    )
    # What a simulation could choose, and real nodes have already.
    parser.set_defaults(workers=1, gpus_per_client=0.0)
    options = parser.parse_args(arguments)
    return reporting_errors(lambda: _demonstrate(options))


def _demonstrate(options: argparse.Namespace) -> None:
    console = Console(highlight=False, soft_wrap=True)
    given = read_overrides(options.run_config, options.nodes)
    overrides = {**FEW_ROUNDS, **given, "min-available-nodes": options.nodes}
    config = RunConfig.parse({**default_keys(), **overrides})
    parts = parts_of(config, options.nodes)
    console.print("Certificates, keys, a SuperLink and its SuperNodes ...")
    with local_deployment(PROJECT, parts) as deployment:
        console.print(f"The SuperLink is https://{deployment.address}; it knows")
        for number, part in enumerate(parts):
            classes = len(set(part.labels.tolist()))
            console.print(
                f"  node {number} by its key: {len(part.labels)} images of {classes} "
                "classes, which stay where they are"
            )
        results = run_on(deployment, options, overrides)
        summary = json.loads((results / "summary.json").read_text())
    console.print(
        f"{summary['rounds']} rounds on {options.nodes} nodes, final accuracy "
        f"{100 * summary['final-accuracy']:.2f} %. Everything is stopped"
        + (f"; the results: {results}" if results.exists() else " and removed.")
    )
