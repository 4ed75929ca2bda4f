"""``python -m flfa_app.experiments``: run a grid, show its table, write its report."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from flfa_app.errors import ConfigError
from flfa_app.experiments.plan import (
    check_data,
    describe_plan,
    list_cells,
    make_plan,
    open_grid,
)
from flfa_app.experiments.progress import GridProgress
from flfa_app.experiments.report.page import write_report
from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.runner import flower_engine, locked_folder, run_plan
from flfa_app.experiments.store import GridResults, read_results
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import positive_int, run_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.command(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m flfa_app.experiments", description=__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="run|table|report")
    # No abbreviations: --out is one thing and --output another.
    run = commands.add_parser(
        "run", help="run the cells of a grid that are not there", allow_abbrev=False
    )
    run.set_defaults(command=_run)
    run.add_argument("grid", type=Path, help="a grid file, configs/grids/*.toml")
    run.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="AXIS=VALUE",
        help="only these cells; several values of an axis: any of them",
    )
    run.add_argument(
        "--seeds",
        nargs="+",
        action="extend",
        type=int,
        default=[],
        help="only these seeds; those that the grid does not have are added to it",
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="say which cells would be run, and how long it may take",
    )
    cores = os.cpu_count() or 1
    run.add_argument(
        "--workers",
        type=positive_int,
        default=cores,
        help=f"simulated nodes that compute at the same time, of all cells ({cores})",
    )
    run.add_argument(
        "--gpus-per-client",
        type=_share_of_a_gpu,
        default=0.0,
        help="share of a GPU for each of them (0)",
    )
    table = commands.add_parser(
        "table", help="the table of a grid's results", allow_abbrev=False
    )
    table.set_defaults(command=_table)
    table.add_argument(
        "--format", choices=("markdown", "csv", "latex"), default="markdown"
    )
    report = commands.add_parser(
        "report", help="one HTML file with all results", allow_abbrev=False
    )
    report.set_defaults(command=_report)
    for command, default in ((table, "the terminal"), (report, "OUT/report.html")):
        command.add_argument(
            "results", type=Path, metavar="OUT|GRID", help="results folder or grid file"
        )
        command.add_argument(
            "--output", type=Path, metavar="FILE", help=f"where to ({default})"
        )
    for command in (run, table, report):
        command.add_argument(
            "--out",
            type=Path,
            help="results folder (runs/grids/<name of the grid file>)",
        )
    return parser


def _share_of_a_gpu(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no share of a GPU; use 0 or more")


def _run(options: argparse.Namespace) -> None:
    folder = (options.out or _default_folder(options.grid)).expanduser().resolve()
    _check_can_be_folder(folder, options.out)
    only = _only(options.only)
    results, chosen = open_grid(options.grid, folder, only, options.seeds)
    plan = make_plan(results, chosen, options.workers)
    console = Console(highlight=False, soft_wrap=True)
    console.print(describe_plan(plan), markup=False)
    if options.dry_run and plan.pending:
        console.print(list_cells(plan), markup=False)
    if options.dry_run or not plan.pending:
        return
    check_data(plan.pending)
    with locked_folder(results):
        engine = flower_engine(plan, options.gpus_per_client)
        with GridProgress(plan.pending, console) as progress:
            failed = run_plan(plan, engine, progress)
    if failed:
        lines = [
            f"  - {cell.id}: {failed[cell.id]}\n    log: {results.log_file(cell)}"
            for cell in plan.pending
            if cell.id in failed
        ]
        number = f"{len(failed)} of {len(plan.pending)} cells"
        raise RuntimeError("\n".join([f"{number} have failed:", *lines]))


def _table(options: argparse.Namespace) -> None:
    text = render_tables(_results(options.results, options.out), options.format)
    if options.output is None:
        sys.stdout.write(text)
        return
    with _writing(options.output):
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")


def _report(options: argparse.Namespace) -> None:
    results = _results(options.results, options.out)
    file = options.output or results.folder / "report.html"
    with _writing(file):
        write_report(results, file)
    Console(soft_wrap=True).print(f"Report: {file.resolve()}", markup=False)


def _results(path: Path, folder: Path | None) -> GridResults:
    if path.suffix != ".toml":
        if folder is not None:
            raise ConfigError(
                f"--out {folder}: {path} is a results folder already; name the grid "
                "file, or leave --out away"
            )
        return read_results(path)
    found = (folder or _default_folder(path)).expanduser().resolve()
    if folder is not None and not found.is_dir():
        raise ConfigError(f"--out {folder}: there is no folder {found}")
    results, _ = open_grid(path, found)
    return results


def _check_can_be_folder(folder: Path, option: Path | None) -> None:
    # Of the folders that lead there, the last that exists; a file may be in the way.
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        name = "the results folder" if option is None else f"--out {option}"
        raise ConfigError(f"{name}: {there} is a file; name a folder with --out")


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise RuntimeError(
            f"--output: cannot write {file} ({problem.strerror}); name another file"
        ) from problem


def _default_folder(grid: Path) -> Path:
    return PROJECT / "runs" / "grids" / grid.stem


def _only(texts: Sequence[str]) -> dict[str, list[str]]:
    only: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--only {text}: it must be AXIS=VALUE")
        only.setdefault(axis, []).append(value)
    return only


if __name__ == "__main__":
    sys.exit(main())
