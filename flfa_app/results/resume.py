"""Which run to resume, and whether config and data allow it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flfa_app.config import AUTO, KEYS, RunConfig
from flfa_app.data.dataset import ImageDataset
from flfa_app.errors import ConfigError
from flfa_app.results.checkpoint import Checkpoint, Checkpoints
from flfa_app.results.run_directory import output_folder

__all__ = ["check_resumable", "check_unchanged", "describe_data", "find_run_to_resume"]

MAY_CHANGE = {name for name, key in KEYS.items() if key.may_change_on_resume}


def find_run_to_resume(config: RunConfig) -> Path | None:
    """Return the directory of the run to resume; None to start a new run.

    Raises
    ------
    ConfigError
        If ``resume`` names a directory that is not that of a run.
    """
    if not config.resume:
        return None
    if config.resume == AUTO:
        return _newest_unfinished_run(config)
    path = Path(config.resume).expanduser().resolve()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"resume is {config.resume!r}, but {path} has no config.json; name the "
            "directory of a run, or 'auto'"
        )
    return path


def check_resumable(
    path: Path, checkpoint: Checkpoint, config: RunConfig, data: Mapping[str, Any]
) -> None:
    """Raise :class:`ConfigError` if this config or data cannot continue a run.

    Parameters
    ----------
    path : Path
        The directory of the run, for the error text.
    checkpoint : Checkpoint
        Its newest checkpoint.
    config : RunConfig
        The current config.
    data : Mapping[str, Any]
        The current data set, as :func:`describe_data` returns it.
    """
    previous = checkpoint.metadata
    check_unchanged(path, previous["run-config"], config.as_keys(), "run-config")
    check_unchanged(path, previous.get("data", {}), data, "data set")
    if config.num_server_rounds < checkpoint.server_round:
        raise ConfigError(
            f"num-server-rounds is {config.num_server_rounds}, but {path} has "
            f"completed {checkpoint.server_round} rounds; raise it, or start a new run "
            '(resume = "")'
        )


def check_unchanged(
    path: Path, previous: Mapping[str, Any], current: Mapping[str, Any], subject: str
) -> None:
    """Raise :class:`ConfigError` with every value that must not have changed.

    Parameters
    ----------
    path : Path
        The directory of the run, for the error text.
    previous, current : Mapping[str, Any]
        The values of the run so far and of this attempt to resume it.
    subject : str
        What the values describe, for the error text.
    """
    if changes := _changed_values(previous, current):
        lines = "\n".join(
            f"  - {key} was {old!r} and is {new!r}" for key, old, new in changes
        )
        raise ConfigError(
            f"{path} cannot be resumed with another {subject}; start a new run "
            f'(resume = "") or use its values:\n{lines}'
        )


def describe_data(images: ImageDataset) -> dict[str, Any]:
    """Return the properties by which a resumed run recognises its data set."""
    return {
        **images.description.to_config(),
        "training-images": len(images.train_labels),
        "test-images": len(images.test_labels),
    }


def _changed_values(
    previous: Mapping[str, Any], current: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Return the keys that make it a different run, with both values."""
    # A key that an older version did not have yet cannot have been set differently.
    return [
        (key, previous[key], value)
        for key, value in current.items()
        if key not in MAY_CHANGE and key in previous and previous[key] != value
    ]


def _newest_unfinished_run(config: RunConfig) -> Path | None:
    """Return the newest run with this config that has a checkpoint and no summary."""
    candidates = []
    for file in output_folder(config).glob("*/config.json"):
        run = file.parent
        if (run / "summary.json").exists() or not Checkpoints.of_run(run).rounds():
            continue
        try:
            previous = json.loads(file.read_text(encoding="utf-8"))["run-config"]
        except (ValueError, KeyError):
            continue  # not written by this app, which writes the file atomically
        if not _changed_values(previous, config.as_keys()):
            candidates.append(run)
    # The name of a run directory begins with the time of its start.
    return max(candidates, key=lambda run: run.name, default=None)
