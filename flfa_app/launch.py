"""``python -m flfa_app.launch``: one run on simulated nodes, from start to end."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
from click import ClickException
from flwr.common.config import parse_config_args
from rich.console import Console

from flfa_app.config import ConfigError, RunConfig
from flfa_app.superlink import SuperLink, local_superlink

__all__ = ["add_options", "launch", "main", "read_overrides", "reporting_errors"]

PROJECT = Path(__file__).resolve().parent.parent
# Of the lines at level INFO, those of this app.
OURS = ("round ", "Results: ", "Score: ", "Waiting for nodes")
# What Flower and Ray write at a higher level in every run, whatever happens.
CHATTER = (
    "Using SuperLink: own",
    "default simulated SuperNodes changed",
    "Manually terminating ClientAppActor",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "Successfully installed",
    "warnings.warn(",
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
    parser.add_argument("--nodes", type=int, default=20, help="simulated nodes (20)")
    parser.add_argument(
        "--workers",
        type=int,
        default=workers,
        help=f"nodes that compute at the same time ({workers})",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=PROJECT / "runs",
        help="parent of the results (runs/)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show everything Flower logs"
    )


def read_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Return the overrides, checked together with the defaults of ``pyproject.toml``.

    Flower refuses an unknown key, but does not say which.

    Parameters
    ----------
    texts : Sequence[str]
        Files and ``key=value`` texts; a later one wins.

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
        except (ClickException, tomli.TOMLDecodeError) as problem:
            raise ConfigError(f"--run-config {text!r}: {problem}") from problem
        if text.strip() and not keys:
            raise ConfigError(f"--run-config {text!r} is neither a file nor key=value")
        overrides.update(keys)
    pyproject = tomli.loads((PROJECT / "pyproject.toml").read_text())
    RunConfig.parse({**pyproject["tool"]["flwr"]["app"]["config"], **overrides})
    return overrides


def launch(
    superlink: SuperLink, options: argparse.Namespace, overrides: Mapping[str, Any]
) -> Path:
    """Run the app once, showing its progress; return the folder of its results.

    Raises
    ------
    RuntimeError
        If the run has failed.
    """
    outcome = superlink.run(
        PROJECT,
        run_config=overrides,
        nodes=options.nodes,
        workers=options.workers,
        output_dir=options.output_dir.resolve(),
        show=_printer(options.verbose),
    )
    if not outcome.completed or outcome.results is None:
        raise RuntimeError(f"the run has failed: {outcome.details}")
    return outcome.results


def _printer(verbose: bool) -> Callable[[str], None]:
    console = Console(highlight=False, soft_wrap=True)

    def show(line: str) -> None:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        if verbose:
            console.print(plain, markup=False)
            return
        info = re.match(r"INFO\s*:\s*(.*)", plain)
        if info and info[1].startswith(OURS):
            console.print(info[1], markup=False)
        elif not info and plain and not any(text in plain for text in CHATTER):
            console.print(plain, markup=False, style="yellow")

    return show


def reporting_errors(command: Callable[[], None]) -> int:
    """Do ``command``; return its exit status, with what went wrong on stderr."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        command()
    except (ConfigError, RuntimeError) as problem:
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
        overrides = read_overrides(options.run_config)
        Console().print(f"Starting Flower with {options.nodes} simulated nodes ...")
        with local_superlink(PROJECT) as superlink:
            launch(superlink, options, overrides)

    return reporting_errors(command)


if __name__ == "__main__":
    sys.exit(main())
