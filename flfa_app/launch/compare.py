"""``python -m flfa_app.compare``: backpropagation and FLFA with the same seed.

Both runs have the same partition, participants, initial weights and batch order, so the
difference between them is the effect of FLFA.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from flfa_app.errors import ConfigError
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import (
    add_simulation_options,
    launch,
    read_overrides,
    run_command,
)
from flfa_app.launch.superlink import local_superlink

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser("python -m flfa_app.compare", description=__doc__)
    add_simulation_options(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: _compare(options))


def _compare(options: argparse.Namespace) -> None:
    flfa = read_overrides(options.run_config, options.nodes)
    if flfa.get("flfa") == "none":
        raise ConfigError(
            "flfa is 'none': a comparison needs a rule, for example 'lowest'"
        )
    bp = {**flfa, "flfa": "none", "fixed-fa-layers": ""}
    summaries = {}
    with local_superlink(PROJECT) as superlink:
        for name, overrides in (("BP", bp), ("FLFA", flfa)):
            Console().print(f"{name} with {options.nodes} simulated nodes ...")
            results = launch(superlink, options, overrides)
            summaries[name] = json.loads((results / "summary.json").read_text())
    print_table(summaries)


def print_table(summaries: dict[str, dict[str, Any]]) -> None:
    table = Table(title="Score: mean test accuracy of the last 10 % of the rounds")
    for column in ("", "score", "final", "mean drift", "bytes sent", "seconds"):
        table.add_column(column, justify="right" if column else "left")
    for name, summary in summaries.items():
        table.add_row(
            name,
            f"{100 * summary['score']:.2f} %",
            f"{100 * summary['final-accuracy']:.2f} %",
            f"{summary['mean-drift']:.3f}",
            f"{summary['bytes-sent']:,}",
            f"{summary['seconds']:.0f}",
        )
    bp, flfa = summaries.values()
    table.add_section()
    table.add_row(
        "FLFA - BP",
        f"{100 * (flfa['score'] - bp['score']):+.2f} %p",
        f"{100 * (flfa['final-accuracy'] - bp['final-accuracy']):+.2f} %p",
        f"{flfa['mean-drift'] - bp['mean-drift']:+.3f}",
        f"{flfa['bytes-sent'] - bp['bytes-sent']:+,}",
        f"{flfa['seconds'] - bp['seconds']:+.0f}",
    )
    Console(highlight=False).print(table)
