"""``python -m flfa_app.deploy_demo``: a short run on real nodes with TLS and node keys.

Starts a SuperLink and three SuperNodes on this machine, each with its own data, runs
FLFA for three rounds, then stops and removes everything. ``docs/deployment.md`` sets up
the same on several machines.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from flfa_app.config import RunConfig
from flfa_app.data.node_data import NodeData
from flfa_app.launch.app_files import PROJECT, default_run_config
from flfa_app.launch.cli import (
    add_run_options,
    launch,
    positive_int,
    read_overrides,
    run_command,
)
from flfa_app.launch.deployment import Deployment, local_deployment
from flfa_app.task import images_of, partitions_of

__all__ = ["launch_on_nodes", "main", "node_images"]

# A round on real nodes takes at least some seconds, so the demo has few.
DEMO_CONFIG: dict[str, Any] = {"num-server-rounds": 3, "fraction-train": 1.0}


def node_images(config: RunConfig, nodes: int) -> list[NodeData]:
    """Return the images of each node, partitioned as in a simulation."""
    images = images_of(config)
    return [
        NodeData(images.train[indices], images.train_labels[indices])
        for indices in partitions_of(config, nodes)
    ]


def launch_on_nodes(
    deployment: Deployment, options: argparse.Namespace, overrides: Mapping[str, Any]
) -> Path:
    """Run the app once and print its progress; return the results folder.

    Raises
    ------
    RuntimeError
        If the run has failed; the text ends with the last lines of all logs.
    """
    output_dir = options.output_dir or overrides.get("output-dir")
    options.output_dir = Path(output_dir or deployment.home / "results")
    try:
        # Without an output folder the log would be removed with the deployment.
        return launch(deployment, options, overrides, save_log=bool(output_dir))
    except RuntimeError as problem:
        raise RuntimeError(f"{problem}\n{deployment.log_tails()}") from problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    name = "python -m flfa_app.deploy_demo"
    parser = argparse.ArgumentParser(name, description=__doc__)
    parser.add_argument("--nodes", type=positive_int, default=3, help="SuperNodes (3)")
    add_run_options(parser, "keep the results, in this folder")
    # Only simulations have these options.
    parser.set_defaults(workers=1, gpus_per_client=0.0)
    options = parser.parse_args(arguments)
    return run_command(lambda: _run_demo(options))


def _run_demo(options: argparse.Namespace) -> None:
    console = Console(highlight=False, soft_wrap=True)
    overrides = {
        **DEMO_CONFIG,
        **read_overrides(options.run_config, options.nodes),
        "min-available-nodes": options.nodes,
    }
    config = RunConfig.parse({**default_run_config(), **overrides})
    images = node_images(config, options.nodes)
    console.print("Creating certificates and keys, starting SuperLink and SuperNodes")
    with local_deployment(PROJECT, images) as deployment:
        console.print(f"The SuperLink is https://{deployment.address}")
        for number, node in enumerate(images):
            classes = len(set(node.labels.tolist()))
            console.print(
                f"  node {number} is registered with its key and keeps its "
                f"{len(node.labels)} images of {classes} classes"
            )
        results = launch_on_nodes(deployment, options, overrides)
        summary = json.loads((results / "summary.json").read_text())
    console.print(
        f"{summary['rounds']} rounds on {options.nodes} nodes, final accuracy "
        f"{100 * summary['final-accuracy']:.2f} %. Everything is stopped"
        + (f"; the results: {results}" if results.exists() else " and removed.")
    )
