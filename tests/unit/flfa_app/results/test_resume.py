"""Which run is resumed, and what must not have changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.results.checkpoint import Checkpoint, Checkpoints
from flfa_app.results.resume import (
    check_resumable,
    check_unchanged,
    find_run_to_resume,
)
from tests.federation import default_keys

DATA = {"classes": 10}


def config_of(**keys: Any) -> RunConfig:
    written = {key.replace("_", "-"): value for key, value in keys.items()}
    return RunConfig.parse(default_keys() | written)


def checkpoint_of(config: RunConfig, server_round: int = 2) -> Checkpoint:
    metadata = {"run-config": config.as_keys(), "data": DATA}
    return Checkpoint(server_round, {"w": np.ones(1)}, {}, {}, [], metadata)


def unfinished_run(path: Path, config: RunConfig) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"run-config": config.as_keys()}))
    Checkpoints(path).write(checkpoint_of(config), best_round=2)
    return path


def test_auto_is_the_newest_unfinished_run_with_this_config(tmp_path: Path) -> None:
    config = config_of(resume="auto", output_dir=str(tmp_path / "runs"))
    assert find_run_to_resume(config) is None
    runs = tmp_path / "runs"
    for name in ("20260101-000000-b", "20260103-000000-a", "20260102-000000-c"):
        unfinished_run(runs / name, config)
    assert find_run_to_resume(config) == runs / "20260103-000000-a"
    (runs / "20260103-000000-a" / "summary.json").touch()  # finished
    unfinished_run(runs / "20260104", config_of(seed=99))
    for name, content in (("20260105", "{"), ("20260106", "{}")):  # not ours
        (unfinished_run(runs / name, config) / "config.json").write_text(content)
    no_checkpoint = unfinished_run(runs / "20260107", config)
    for file in Checkpoints(no_checkpoint).folder.iterdir():
        file.unlink()
    assert find_run_to_resume(config) == runs / "20260102-000000-c"


def test_auto_looks_where_new_runs_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for output_dir, folder in (("", "runs"), ("~/mine", "home/mine")):
        config = config_of(resume="auto", output_dir=output_dir)
        run = unfinished_run(tmp_path / folder / "20260101", config)
        assert find_run_to_resume(config) == run


def test_a_named_run_must_have_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_run_to_resume(config_of()) is None
    with pytest.raises(ConfigError, match=r"resume is '~/run'.*has no config\.json"):
        find_run_to_resume(config_of(resume="~/run"))
    run = unfinished_run(tmp_path / "run", config_of())
    assert find_run_to_resume(config_of(resume="~/run")) == run


def test_every_changed_value_is_named_with_both_values(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(config_of())
    other = config_of(algorithm="fedprox", norm="batch", round_timeout=5.0)
    with pytest.raises(ConfigError) as refused:
        check_resumable(tmp_path, checkpoint, other, DATA)
    text = str(refused.value)
    assert f"{tmp_path} cannot be resumed with another run-config" in text
    assert "algorithm was 'fedavg' and is 'fedprox'" in text
    assert "norm was 'group' and is 'batch'" in text
    assert "round-timeout" not in text  # does not change what a round computes
    with pytest.raises(ConfigError, match=r"another data set(.|\n)*was 10 and is 9"):
        check_resumable(tmp_path, checkpoint, config_of(), {"classes": 9})


def test_keys_that_an_older_version_did_not_have_are_no_change(tmp_path: Path) -> None:
    check_unchanged(tmp_path, {"seed": 1}, {"seed": 1, "new-key": 5}, "run-config")
    check_unchanged(tmp_path, {"seed": 1, "old-key": 5}, {"seed": 1}, "run-config")
    config = config_of()
    older = {k: v for k, v in config.as_keys().items() if k != "scaling"}
    checkpoint = checkpoint_of(config)._replace(metadata={"run-config": older})
    check_resumable(tmp_path, checkpoint, config, DATA)


def test_a_run_cannot_become_shorter_than_it_is(tmp_path: Path) -> None:
    config = config_of(num_server_rounds=2)
    check_resumable(tmp_path, checkpoint_of(config, 2), config, DATA)
    with pytest.raises(ConfigError, match=r"num-server-rounds is 2, .* completed 3"):
        check_resumable(tmp_path, checkpoint_of(config, 3), config, DATA)
