"""``python -m flfa_app.launch``: one run on simulated nodes, from start to end."""

from __future__ import annotations

import argparse
import os
import re
import signal
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from click import ClickException
from flwr.common.config import parse_config_args
from rich.console import Console

from flfa_app.config import AUTO, RunConfig
from flfa_app.errors import ConfigError
from flfa_app.launch.superlink import SuperLink, local_superlink
from flfa_app.preflight import prepare
from flfa_app.results.checkpoint import write_file

__all__ = [
    "PROJECT",
    "add_options",
    "at_least_one",
    "default_keys",
    "launch",
    "main",
    "read_overrides",
    "reporting_errors",
]

PROJECT = Path(__file__).resolve().parents[2]
# Of the lines at level INFO, those of this app.
OURS = (
    "round ",
    "Results: ",
    "Score: ",
    "Waiting for nodes",
    "Going on after",
    "Stopping early",
    "Clients take up",
    "partition ",
)
# What Flower and Ray write at a higher level in every run, whatever happens.
CHATTER = (
    "default simulated SuperNodes changed",
    "Manually terminating ClientAppActor",
    "Exit Code: 700",
    "Simulation raised an exception",
    "Traceback (most recent call last)",
    "ray::ClientAppActor",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what every command that runs the app understands."""
    workers = min(os.cpu_count() or 1, 8)
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="FILE|'KEY=VALUE ...'",
        help="override keys of [tool.flwr.app.config]; may be repeated",
    )
    parser.add_argument(
        "--nodes", type=at_least_one, default=20, help="simulated nodes (20)"
    )
    parser.add_argument(
        "--workers",
        type=at_least_one,
        default=workers,
        help=f"nodes that compute at the same time ({workers})",
    )
    parser.add_argument(
        "--gpus-per-client",
        type=float,
        default=0.0,
        help="share of a GPU for each of them (0)",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        help="parent of the results (runs/); the key output-dir is the same",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show everything Flower logs"
    )


def at_least_one(text: str) -> int:
    """Return the number an option asks for; what is not one is refused."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def read_overrides(texts: Sequence[str], nodes: int | None = None) -> dict[str, Any]:
    """Return the overrides, checked together with the defaults of ``pyproject.toml``.

    Flower refuses an unknown key, but does not say which. What data and model have
    against the config is found here as well, before anything starts.

    Parameters
    ----------
    texts : Sequence[str]
        Files and ``key=value`` texts; a later one wins.
    nodes : int, optional
        Simulated nodes.

    Raises
    ------
    ConfigError
        If the run could not use them.
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        if text.endswith(".toml") and not Path(text).is_file():
            raise ConfigError(f"--run-config: there is no file {text}")
        try:
            keys = parse_config_args([text])
        except (ClickException, ValueError) as problem:  # of Flower's TOML parser
            raise ConfigError(f"--run-config {text!r}: {problem}") from problem
        if text.strip() and not keys:
            raise ConfigError(
                f"--run-config {text!r} is neither a .toml file nor key=value"
            )
        overrides.update(keys)
    prepare(RunConfig.parse({**default_keys(), **overrides}), nodes)
    return overrides


def default_keys() -> dict[str, Any]:
    """Return the run config of ``pyproject.toml``."""
    pyproject = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return dict(pyproject["tool"]["flwr"]["app"]["config"])


def launch(
    superlink: SuperLink, options: argparse.Namespace, overrides: Mapping[str, Any]
) -> Path:
    """Run the app once, showing its progress; return the folder of its results.

    Raises
    ------
    RuntimeError
        If the run has failed.
    """
    folder = options.output_dir or overrides.get("output-dir") or PROJECT / "runs"
    if overrides.get("resume", "") not in ("", AUTO):
        folder = Path(overrides["resume"]).parent  # the results stay where they are
    log: list[str] = []
    outcome = superlink.run(
        run_config=overrides,
        nodes=options.nodes,
        workers=options.workers,
        gpus=options.gpus_per_client,
        output_dir=Path(folder).expanduser().resolve(),
        show=_printer(options.verbose, log),
    )
    if not outcome.completed or outcome.results is None:
        where = _keep_log(log, Path(folder).expanduser().resolve() / "failed-run.log")
        raise RuntimeError(f"the run has failed: {outcome.details}\n{where}")
    return outcome.results


def _keep_log(log: Sequence[str], file: Path) -> str:
    """Write what Flower has logged; say where it is, or why it is not there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, "\n".join(log).encode())
    except OSError as problem:
        # On a full disk, say; what ended the run is still to be told.
        return (
            f"What Flower logged could not be written to {file} "
            f"({problem.strerror}); --verbose shows it while it runs"
        )
    return f"Everything Flower logged: {file}"


def _printer(verbose: bool, log: list[str]) -> Callable[[str], None]:
    """Return what takes the lines of a log: keeps all, shows what a person follows.

    Of Flower's own lines those are warnings and errors, each of them once and without
    the tracebacks of every worker.
    """
    console = Console(highlight=False, soft_wrap=True)
    shown: set[str] = set()

    def show(line: str) -> None:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        log.append(plain)
        if verbose:
            console.print(plain, markup=False)
            return
        found = re.match(r"(?:\(.*?\) )?(INFO|WARNING|ERROR)\s*:\s*(.*)", plain)
        level, text = found.groups() if found else ("", "")
        if level == "INFO" and text.startswith(OURS):
            console.print(text, markup=False)
        elif level in ("WARNING", "ERROR") and text and text not in shown:
            shown.add(text)
            if not any(chatter in text for chatter in CHATTER):
                console.print(f"{level}: {text}", markup=False, style="yellow")

    return show


def reporting_errors(command: Callable[[], None]) -> int:
    """Do ``command``; return its exit status, with what went wrong on stderr."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)  # through all that has to be stopped

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
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
    add_options(parser)
    options = parser.parse_args(arguments)

    def command() -> None:
        overrides = read_overrides(options.run_config, options.nodes)
        Console().print(f"Starting Flower with {options.nodes} simulated nodes ...")
        with local_superlink(PROJECT) as superlink:
            launch(superlink, options, overrides)

    return reporting_errors(command)
