"""Which run is resumed, and what must not have changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.results.checkpoint import Checkpoint, Checkpoints
from flfa_app.results.resume import check_resumable, find_run_to_resume

DATA = {"classes": 10}


def checkpoint_of(config: RunConfig, server_round: int = 2) -> Checkpoint:
    metadata = {"run-config": config.as_keys(), "data": DATA}
    return Checkpoint(server_round, {"w": np.ones(1)}, {}, {}, [], metadata)


def unfinished_run(path: Path, config: RunConfig) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"run-config": config.as_keys()}))
    Checkpoints(path).write(checkpoint_of(config), best_round=2)
    return path


def test_auto_is_the_newest_unfinished_run_with_this_config(tmp_path: Path) -> None:
    config = RunConfig(resume="auto", output_dir=str(tmp_path))
    assert find_run_to_resume(config) is None
    for name in ("20260101-000000-b", "20260103-000000-a", "20260102-000000-c"):
        unfinished_run(tmp_path / name, config)
    assert find_run_to_resume(config) == tmp_path / "20260103-000000-a"
    (tmp_path / "20260103-000000-a" / "summary.json").touch()  # finished
    unfinished_run(tmp_path / "20260104", RunConfig(seed=99))
    for name, content in (("20260105", "{"), ("20260106", "{}")):  # not ours
        (unfinished_run(tmp_path / name, config) / "config.json").write_text(content)
    Checkpoints(unfinished_run(tmp_path / "20260107", config)).delete_after(0)
    assert find_run_to_resume(config) == tmp_path / "20260102-000000-c"


def test_where_runs_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With auto where new runs are written; a named run must have a config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for output_dir, folder in (("", "runs"), ("~/mine", "home/mine")):
        config = RunConfig(resume="auto", output_dir=output_dir)
        run = unfinished_run(tmp_path / folder / "20260101", config)
        assert find_run_to_resume(config) == run
    assert find_run_to_resume(RunConfig(resume="~/mine/20260101")) == run
    assert find_run_to_resume(RunConfig()) is None
    with pytest.raises(ConfigError, match=r"resume is '~/run'.*has no config\.json"):
        find_run_to_resume(RunConfig(resume="~/run"))


def test_every_changed_value_is_named_with_both_values(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(RunConfig())
    other = RunConfig(algorithm="fedprox", norm="batch", round_timeout=5.0)
    with pytest.raises(ConfigError) as refused:
        check_resumable(tmp_path, checkpoint, other, DATA)
    text = str(refused.value)
    assert f"{tmp_path} cannot be resumed with another run-config" in text
    assert "algorithm was 'fedavg' and is 'fedprox'" in text
    assert "norm was 'group' and is 'batch'" in text
    assert "round-timeout" not in text  # does not change what a round computes
    with pytest.raises(ConfigError, match=r"another data set(.|\n)*was 10 and is 9"):
        check_resumable(tmp_path, checkpoint, RunConfig(), {"classes": 9})


def test_keys_that_an_older_version_did_not_have_are_no_change(tmp_path: Path) -> None:
    config = RunConfig()
    older = {k: v for k, v in config.as_keys().items() if k != "scaling"} | {"old": 5}
    checkpoint = checkpoint_of(config)._replace(metadata={"run-config": older})
    check_resumable(tmp_path, checkpoint, config, DATA)


def test_a_run_cannot_become_shorter_than_it_is(tmp_path: Path) -> None:
    config = RunConfig(num_server_rounds=2)
    check_resumable(tmp_path, checkpoint_of(config, 2), config, DATA)
    with pytest.raises(ConfigError, match=r"num-server-rounds is 2, .* completed 3"):
        check_resumable(tmp_path, checkpoint_of(config, 3), config, DATA)
