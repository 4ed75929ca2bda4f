"""``python -m flfa_app.experiments``: run a grid, print tables, write a report."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
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
from flfa_app.experiments.runner import flower_engine, locked_folder, run_plan
from flfa_app.experiments.store import GridResults, read_results
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import positive_int, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _build_parser().parse_args(arguments)
    return run_command(lambda: options.command(options))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m flfa_app.experiments", description=__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="run|table|report")
    run, table, report = (
        # Without abbreviations, because --out and --output are different options.
        commands.add_parser(name, help=text, allow_abbrev=False)
        for name, text in (
            ("run", "run the cells of a grid that are not finished"),
            ("table", "print the tables of a grid's results"),
            ("report", "write one HTML file with all results"),
        )
    )
    run.set_defaults(command=_run)
    table.set_defaults(command=_table)
    report.set_defaults(command=_report)
    _add_run_options(run)
    table.add_argument(
        "--format", choices=("markdown", "csv", "latex"), default="markdown"
    )
    for command, default in ((table, "the terminal"), (report, "OUT/report.html")):
        command.add_argument(
            "results", type=Path, metavar="OUT|GRID", help="results folder or grid file"
        )
        command.add_argument(
            "--output", type=Path, metavar="FILE", help=f"output file ({default})"
        )
    for command in (run, table, report):
        command.add_argument(
            "--out",
            type=Path,
            help="results folder (runs/grids/<name of the grid file>)",
        )
    return parser


def _add_run_options(run: argparse.ArgumentParser) -> None:
    run.add_argument("grid", type=Path, help="a grid file, configs/grids/*.toml")
    run.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="AXIS=VALUE",
        help="run only these cells; several values of an axis select any of them",
    )
    run.add_argument(
        "--seeds",
        nargs="+",
        action="extend",
        type=int,
        default=[],
        help="run only these seeds; seeds that the grid lacks are added to it",
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="list the cells that would be run, and how long each may take",
    )
    cores = os.cpu_count() or 1
    run.add_argument(
        "--workers",
        type=positive_int,
        default=cores,
        help=f"simulated nodes of all cells that compute at the same time ({cores})",
    )
    run.add_argument(
        "--gpus-per-client",
        type=_gpu_share,
        default=0.0,
        help="share of a GPU for each simulated node (0)",
    )


def _gpu_share(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no share of a GPU; use 0 or more")


def _run(options: argparse.Namespace) -> None:
    folder = _results_folder(options.grid, options.out)
    _check_can_be_folder(folder, options.out)
    only = _parse_only(options.only)
    results, selected = open_grid(options.grid, folder, only, options.seeds)
    plan = make_plan(results, selected, options.workers)
    console = Console(highlight=False, soft_wrap=True)
    console.print(describe_plan(plan), markup=False)
    if options.dry_run and plan.pending:
        console.print(list_cells(plan), markup=False)
    if options.dry_run or not plan.pending:
        return
    check_data(plan.pending)
    with locked_folder(results):
        engine = flower_engine(plan, options.gpus_per_client)
        progress = GridProgress(plan.pending, console)
        with progress.bar:
            failures = run_plan(plan, engine, progress)
    if failures:
        lines = [
            f"  - {cell.id}: {failures[cell.id]}\n    log: {results.log_file(cell)}"
            for cell in plan.pending
            if cell.id in failures
        ]
        count = f"{len(failures)} of {len(plan.pending)} cells"
        raise RuntimeError("\n".join([f"{count} have failed:", *lines]))


def _table(options: argparse.Namespace) -> None:
    # Imported here because it imports scipy, which takes seconds.
    from flfa_app.experiments.report.tables import render_tables

    text = render_tables(_open_results(options.results, options.out), options.format)
    if options.output is None:
        sys.stdout.write(text)
    else:
        _write_output(options.output, text)


def _report(options: argparse.Namespace) -> None:
    # Imported here because it imports scipy and matplotlib, which takes seconds.
    from flfa_app.experiments.report.page import render_report

    results = _open_results(options.results, options.out)
    file = options.output or results.folder / "report.html"
    _write_output(file, render_report(results, date.today()))
    Console(soft_wrap=True).print(f"Report: {file.resolve()}", markup=False)


def _open_results(path: Path, folder: Path | None) -> GridResults:
    """Return the results for a results folder, or for a grid file and ``--out``."""
    if path.suffix != ".toml":
        if folder is not None:
            raise ConfigError(
                f"--out {folder}: {path} is a results folder already; name the grid "
                "file, or leave out --out"
            )
        return read_results(path)
    results_folder = _results_folder(path, folder)
    if folder is not None and not results_folder.is_dir():
        raise ConfigError(f"--out {folder}: there is no folder {results_folder}")
    results, _ = open_grid(path, results_folder)
    return results


def _check_can_be_folder(folder: Path, option: Path | None) -> None:
    # A file instead of the folder, or of one of its parents, cannot be replaced.
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        name = "the results folder" if option is None else f"--out {option}"
        raise ConfigError(f"{name}: {existing} is a file; name a folder with --out")


def _write_output(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RuntimeError(
            f"--output: cannot write {file} ({error.strerror}); name another file"
        ) from error


def _results_folder(grid: Path, option: Path | None) -> Path:
    folder = option or PROJECT / "runs" / "grids" / grid.stem
    return folder.expanduser().resolve()


def _parse_only(texts: Sequence[str]) -> dict[str, list[str]]:
    only: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--only {text}: it must be AXIS=VALUE")
        only.setdefault(axis, []).append(value)
    return only


if __name__ == "__main__":
    sys.exit(main())
