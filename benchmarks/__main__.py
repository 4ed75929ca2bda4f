"""``python -m benchmarks``: every benchmark, one after another, and a table of all.

An hour and a half on two cores. ``--only NAME`` takes some of them. The figures of
those that ran before are kept in the folder and stay in the table, so that it can be
made in pieces.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import Figure, markdown, missed

__all__ = ["main"]

# In the order of the table, with about how many minutes they take.
BENCHMARKS = {
    "train_step": 8,
    "depthwise": 2,
    "step_cost": 25,
    "data_cost": 2,
    "server_cost": 1,
    "server_memory": 1,
    "round_cost": 5,
    "scale": 8,
    "start_to_end": 4,
    "peers": 25,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a goal is missed or one failed."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=BENCHMARKS, action="append", help="may be repeated"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="(runs/benchmarks)"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True)
    failed = []
    for name in options.only or BENCHMARKS:
        console.print(f"{name} (about {BENCHMARKS[name]} minutes) ...", markup=False)
        if not _run(name, options.out / f"{name}.json"):
            failed.append(name)
    table, goals_missed = _table(options.out)
    (options.out / "table.md").write_text(table)
    console.print(table, markup=False)
    if failed:
        console.print(f"Failed: {', '.join(failed)}", style="red")
    return int(bool(failed) or goals_missed)


def _run(name: str, file: Path) -> bool:
    """Run a benchmark in a process of its own; return whether it has measured."""
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file)]
    subprocess.run(command, check=False)
    return file.exists()


def _table(folder: Path) -> tuple[str, bool]:
    """Return all figures that are there, by machine and day, and if one is missed."""
    by_machine: dict[str, list[Figure]] = {}
    for name in BENCHMARKS:
        if (file := folder / f"{name}.json").exists():
            content = json.loads(file.read_text())
            where = _machine(content["machine"])
            by_machine.setdefault(where, []).extend(map(_figure, content["figures"]))
    parts = [f"{where}\n\n{markdown(found)}\n" for where, found in by_machine.items()]
    every = [figure for found in by_machine.values() for figure in found]
    return "\n".join(parts), missed(every)


def _figure(row: dict[str, Any]) -> Figure:
    return Figure(**{key: row[key] for key in Figure._fields if key in row})


def _machine(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{key} {about[key]}" for key in ("python", "torch", "flwr"))
    return f"{about['date']}, {about['processor']}, {about['cores']} cores, {versions}"


if __name__ == "__main__":
    sys.exit(main())
