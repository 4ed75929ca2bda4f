"""``python -m benchmarks.convergence``: every method on the digits, with ``flwr run``.

All methods of the registry, without and with FLFA, with the keys of ``pyproject.toml``:
20 simulated nodes, 30 rounds, one seed. Score, drift and the bytes of a message.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import output_file
from benchmarks.timing import machine
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import (
    add_simulation_options,
    launch,
    read_overrides,
    run_command,
)
from flfa_app.launch.superlink import local_superlink
from flfa_app.methods import ALGORITHMS
from flfa_app.results.records import read_records

__all__ = ["main"]

RULE = "lowest"
GOAL = 0.85


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a method does not converge."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.convergence", description=__doc__
    )
    add_simulation_options(parser)
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> None:
    given = read_overrides(options.run_config, options.nodes)
    rows: list[dict[str, Any]] = []
    with local_superlink(PROJECT) as superlink:
        for algorithm in ALGORITHMS:
            for rule in ("none", RULE):
                overrides = {**given, "algorithm": algorithm, "flfa": rule}
                Console(stderr=True).print(f"{algorithm}, flfa = {rule} ...")
                rows.append(_row(launch(superlink, options, overrides)))
    if options.json:
        content = {"machine": machine(), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    Console(highlight=False, soft_wrap=True).print(_table(rows), markup=False)
    if low := [row["method"] for row in rows if row["final-accuracy"] <= GOAL]:
        raise RuntimeError(f"not above {GOAL:.0%} at the end: {', '.join(low)}")


def _row(results: Path) -> dict[str, Any]:
    config = json.loads((results / "config.json").read_text())["run-config"]
    summary = json.loads((results / "summary.json").read_text())
    records = read_records(results / "metrics.jsonl")
    sent = sum(len(record.participants) for record in records)
    replied = sent - sum(len(record.failed) for record in records)
    return {
        "method": config["algorithm"],
        "flfa": config["flfa"] != "none",
        "score": summary["score"],
        "final-accuracy": summary["final-accuracy"],
        "mean-drift": summary["mean-drift"],
        "bytes-down": sum(r.traffic.bytes_sent for r in records) / sent,
        "bytes-up": sum(r.traffic.bytes_received for r in records) / replied,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table, a line for each method."""
    plain, flfa = (
        {r["method"]: r for r in rows if r["flfa"] is f} for f in (False, True)
    )
    base = plain["fedavg"]
    lines = [
        "| method | score | with FLFA | drift | with FLFA | extra bytes down | "
        "with FLFA | extra bytes up |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in plain.items():
        down, fa_down, up = (
            f"{row_[key] - base[key]:,.1f}"
            for row_, key in (
                (row, "bytes-down"),
                (flfa[name], "bytes-down"),
                (row, "bytes-up"),
            )
        )
        lines.append(
            f"| `{name}` | {row['score']:.2%} | {flfa[name]['score']:.2%} | "
            f"{row['mean-drift']:.3f} | {flfa[name]['mean-drift']:.3f} | "
            f"{down} | {fa_down} | {up} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
