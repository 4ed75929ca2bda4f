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

MAY_CHANGE = {name for name, key in KEYS.items() if key.may_change_on_resume}


def find_run_to_resume(config: RunConfig) -> Path | None:
    """Return the directory of the run to resume; None to start a new run."""
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

    ``checkpoint`` is the newest of the run in ``path``; ``data`` is the result of
    :func:`describe_data`.
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

    ``path`` and ``subject`` (what the values describe) are for the error text.
    """
    if changes := _changes(previous, current):
        raise ConfigError(
            f"{path} cannot be resumed with another {subject}; start a new run "
            '(resume = "") or use its values:',
            changes,
        )


def describe_data(images: ImageDataset) -> dict[str, Any]:
    """Return the properties by which a resumed run recognises its data set."""
    return {
        **images.description.to_config(),
        "training-images": len(images.train_labels),
        "test-images": len(images.test_labels),
    }


def _changes(previous: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the changes that make it a different run."""
    # A key that an older version did not have yet cannot have been set differently.
    return [
        f"{key} was {previous[key]!r} and is {value!r}"
        for key, value in current.items()
        if key not in MAY_CHANGE and key in previous and previous[key] != value
    ]


def _newest_unfinished_run(config: RunConfig) -> Path | None:
    """Return the newest run with this config that has a checkpoint and no summary."""
    candidates = []
    for file in output_folder(config).glob("*/config.json"):
        run = file.parent
        if (run / "summary.json").exists() or not Checkpoints(run).rounds():
            continue
        try:
            previous = json.loads(file.read_text(encoding="utf-8"))["run-config"]
        except (ValueError, KeyError):
            continue  # not written by this app, which writes the file atomically
        if not _changes(previous, config.as_keys()):
            candidates.append(run)
    # The name of a run directory begins with the time of its start.
    return max(candidates, key=lambda run: run.name, default=None)
