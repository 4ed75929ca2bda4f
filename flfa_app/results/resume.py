"""Which run to go on with, and whether it is the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flfa_app.config import AUTO, KEYS, RunConfig
from flfa_app.data.dataset import ImageDataset
from flfa_app.errors import ConfigError
from flfa_app.results.checkpoint import Checkpoint, Checkpoints

__all__ = ["about_data", "check_goes_on", "check_same_run", "run_to_resume"]

MAY_CHANGE = {name for name, key in KEYS.items() if key.may_change_on_resume}


def run_to_resume(config: RunConfig) -> Path | None:
    """Return the directory of the run to go on with; None to begin a new one.

    Raises
    ------
    ConfigError
        If ``resume`` names a directory that is no run's.
    """
    if not config.resume:
        return None
    if config.resume == AUTO:
        return _newest_unfinished(config)
    path = Path(config.resume).expanduser().resolve()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"resume is {config.resume!r}, but {path} has no config.json; name the "
            "directory of a run, or 'auto'"
        )
    return path


def check_same_run(
    path: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    of: str = "run-config",
) -> None:
    """Raise :class:`ConfigError` with every value that makes it another run."""
    if different := differences(before, now):
        lines = "\n".join(
            f"  - {key} was {old!r} and is {new!r}" for key, old, new in different
        )
        raise ConfigError(
            f'{path} cannot go on with another {of}; begin a new run (resume = "") '
            f"or use its values:\n{lines}"
        )


def about_data(images: ImageDataset) -> dict[str, Any]:
    """Return what tells a data set from another one, for the checkpoint."""
    return {
        **images.description.to_config(),
        "training-images": len(images.train_labels),
        "test-images": len(images.test_labels),
    }


def check_goes_on(
    path: Path, checkpoint: Checkpoint, config: RunConfig, data: Mapping[str, Any]
) -> None:
    """Raise :class:`ConfigError` if a run cannot go on with this config and data."""
    about = checkpoint.about
    check_same_run(path, about["run-config"], config.as_keys())
    check_same_run(path, about.get("data", {}), data, "data set")
    if config.num_server_rounds < checkpoint.server_round:
        raise ConfigError(
            f"num-server-rounds is {config.num_server_rounds}, but {path} has done "
            f"{checkpoint.server_round} rounds; raise it, or begin a new run "
            '(resume = "")'
        )


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Return the keys that make two configs two runs, with both values."""
    # A key that the older version did not have is none it could have set.
    return [
        (key, before[key], value)
        for key, value in now.items()
        if key not in MAY_CHANGE and key in before and before[key] != value
    ]


def _newest_unfinished(config: RunConfig) -> Path | None:
    """Return the last run with this config that has a checkpoint and no summary."""
    parent = Path(config.output_dir or "runs").expanduser().resolve()
    found = []
    for file in parent.glob("*/config.json"):
        run = file.parent
        if (run / "summary.json").exists() or not Checkpoints.of(run).rounds():
            continue
        try:
            before = json.loads(file.read_text(encoding="utf-8"))["run-config"]
        except (ValueError, KeyError):
            continue  # half-written by something else than this app
        if not differences(before, config.as_keys()):
            found.append(run)
    return max(found, key=lambda run: run.name, default=None)
