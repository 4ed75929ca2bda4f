"""``python -m flfa_app.launch``: one run on simulated nodes, from start to end."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from flfa_app._flwr_compat import parse_config_overrides
from flfa_app.config import AUTO, RunConfig
from flfa_app.errors import ConfigError
from flfa_app.launch.app_files import PROJECT, default_run_config
from flfa_app.launch.run_log import RunLog
from flfa_app.launch.superlink import SuperLink, local_superlink

__all__ = [
    "add_run_options",
    "add_simulation_options",
    "launch",
    "main",
    "positive_int",
    "read_overrides",
    "run_command",
]


def add_run_options(
    parser: argparse.ArgumentParser,
    output_help: str = "parent of the results (runs/); the key output-dir is the same",
) -> None:
    """Add the options of every command that runs the app."""
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="FILE|'KEY=VALUE ...'",
        help="override keys of [tool.flwr.app.config]; may be repeated",
    )
    parser.add_argument("--output-dir", type=Path, help=output_help)
    parser.add_argument(
        "--verbose", action="store_true", help="show everything Flower logs"
    )


def add_simulation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a simulation: those of every run, nodes, workers, GPUs."""
    add_run_options(parser)
    workers = min(os.cpu_count() or 1, 8)
    parser.add_argument(
        "--nodes", type=positive_int, default=20, help="simulated nodes (20)"
    )
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=workers,
        help=f"nodes that compute at the same time ({workers})",
    )
    parser.add_argument(
        "--gpus-per-client",
        type=float,
        default=0.0,
        help="share of a GPU for each of them (0)",
    )


def positive_int(text: str) -> int:
    """Return the integer of an option; refuse it if it is smaller than 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def read_overrides(texts: Sequence[str], nodes: int | None = None) -> dict[str, Any]:
    """Return the overrides of the run config, checked together with the defaults.

    Flower rejects an unknown key without naming it. Here config, data and model are
    checked before any process starts.

    Parameters
    ----------
    texts : Sequence[str]
        Files and ``key=value`` texts; a later one overrides an earlier one.
    nodes : int, optional
        Simulated nodes.

    Raises
    ------
    ConfigError
        If the app could not run with them.
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        if text.endswith(".toml") and not Path(text).is_file():
            raise ConfigError(f"--run-config: there is no file {text}")
        try:
            keys = parse_config_overrides(text)
        except ValueError as problem:
            raise ConfigError(f"--run-config {text!r}: {problem}") from problem
        if text.strip() and not keys:
            raise ConfigError(
                f"--run-config {text!r} is neither a .toml file nor key=value"
            )
        overrides.update(keys)
    config = RunConfig.parse({**default_run_config(), **overrides})
    # Imported here because it imports torch, which takes seconds.
    from flfa_app.preflight import prepare

    prepare(config, nodes)
    return overrides


def launch(
    superlink: SuperLink,
    options: argparse.Namespace,
    overrides: Mapping[str, Any],
    save_log: bool = True,
) -> Path:
    """Run the app once and print its progress; return the results folder.

    Parameters
    ----------
    superlink : SuperLink
        Where the app runs.
    options : argparse.Namespace
        The options of the command.
    overrides : Mapping[str, Any]
        Overrides of the run config.
    save_log : bool
        Write the log of a failed run to the output folder.

    Raises
    ------
    RuntimeError
        If the run has failed.
    """
    folder = options.output_dir or overrides.get("output-dir") or PROJECT / "runs"
    if overrides.get("resume", "") not in ("", AUTO):
        folder = Path(overrides["resume"]).parent  # a resumed run keeps its folder
    output_dir = Path(folder).expanduser().resolve()
    log = RunLog(options.verbose)
    outcome = superlink.run(
        run_config=overrides,
        nodes=options.nodes,
        workers=options.workers,
        gpus=options.gpus_per_client,
        output_dir=output_dir,
        on_log_line=log.add,
    )
    if not outcome.completed or outcome.results is None:
        text = f"the run has failed: {outcome.details}"
        if save_log:
            text += f"\n{log.save(output_dir / 'failed-run.log')}"
        raise RuntimeError(text)
    return outcome.results


def run_command(command: Callable[[], None]) -> int:
    """Call the body of a command; return its exit status.

    Expected errors are printed to stderr without a traceback. SIGTERM and SIGHUP raise
    an exception, so that the processes of Flower are stopped on the way out.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def exit_on_signal(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    try:
        command()
    except (ConfigError, RuntimeError, OSError) as problem:
        errors.print(str(problem), markup=False, style="red")
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted", style="red")
        return 130
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser("python -m flfa_app.launch", description=__doc__)
    add_simulation_options(parser)
    options = parser.parse_args(arguments)

    def command() -> None:
        overrides = read_overrides(options.run_config, options.nodes)
        Console().print(f"Starting Flower with {options.nodes} simulated nodes ...")
        with local_superlink(PROJECT) as superlink:
            launch(superlink, options, overrides)

    return run_command(command)
