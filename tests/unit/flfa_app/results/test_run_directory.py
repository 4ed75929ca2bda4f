"""The files of a run directory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flfa_app.config import RunConfig
from flfa_app.results.records import Evaluation, RoundRecord
from flfa_app.results.run_directory import RunDirectory, output_folder
from tests.federation import default_keys

REST: dict[str, Any] = {"no_op_rounds": None, "stopped_early": None, "seconds": 1.0}


def config_of(**keys: Any) -> RunConfig:
    written = {key.replace("_", "-"): value for key, value in keys.items()}
    return RunConfig.parse(default_keys() | written)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(config_of(output_dir=str(tmp_path)), 7)


def test_the_name_of_the_directory_describes_the_run(tmp_path: Path) -> None:
    config = config_of(output_dir=str(tmp_path), flfa="none", seed=3)
    run = RunDirectory.create(config, 7)
    assert run.path.parent == tmp_path
    assert run.path.name.endswith("-digits-cnn-fedavg-bp-s3-7")
    assert run.path.is_dir()
    assert len(run.short_name) == 24
    assert run.short_name != RunDirectory.create(config, 8).short_name


def test_the_output_folder_is_runs_here_or_may_be_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert output_folder(config_of()) == tmp_path / "runs"
    assert output_folder(config_of(output_dir="~/x")) == tmp_path / "home" / "x"


def test_an_output_dir_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"output-dir: cannot create .*file"):
        RunDirectory.create(config_of(output_dir=str(tmp_path / "file")), 7)


def test_the_config_of_a_resumed_run_has_all_run_ids(run: RunDirectory) -> None:
    for run_id in (7, 9):
        run.write_config(config_of(seed=3), run_id, {"nodes": 4})
    written = json.loads((run.path / "config.json").read_text())
    assert written["run-config"]["seed"] == 3
    assert written["nodes"] == 4
    assert written["run-ids"] == ["7", "9"]
    assert {"python", "flwr", "torch"} <= written["versions"].keys()
    assert "git-commit" in written


def test_restoring_a_checkpoint_drops_later_rounds_and_the_final_files(
    run: RunDirectory,
) -> None:
    records = [RoundRecord(i, Evaluation(0.5), drift=math.nan) for i in (1, 2, 3)]
    for record in records:
        run.add_round(record)
    run.save_model({"w": torch.ones(1)})
    run.write_summary(**REST)
    run.restore(records[:2])
    assert run.records == records[:2]
    assert [path.name for path in run.path.iterdir()] == ["metrics.jsonl"]
    lines = (run.path / "metrics.jsonl").read_text()
    assert lines == "".join(record.to_line() for record in records[:2])


def test_the_best_round_is_one_whose_model_is_there(run: RunDirectory) -> None:
    """The first with the highest accuracy: without 1 and 3, of 2, 4, 5 it is 4."""
    assert run.best_round == 0
    for i, accuracy in enumerate([0.9, 0.5, 0.8, 0.7, 0.7], start=1):
        run.add_round(RoundRecord(i, Evaluation(accuracy)))
    run.add_round(RoundRecord(6))
    assert run.best_round == 1
    run.lost_models |= {1, 3}
    assert run.best_round == 4
    run.add_round(RoundRecord(7, Evaluation(0.1)))
    summary = run.write_summary(**REST)
    assert (summary["best-round"], summary["best-accuracy"]) == (4, 0.7)


def test_a_summary_has_null_for_nan(run: RunDirectory) -> None:
    run.add_round(RoundRecord(1, Evaluation(0.5, auc=math.nan)))
    summary = run.write_summary(**REST)
    written = json.loads((run.path / "summary.json").read_text())
    assert math.isnan(summary["auc"])
    assert written["auc"] is None
    assert list(written) == list(summary)
    assert written["score"] == 0.5


def test_a_model_is_saved_whatever_its_strides(run: RunDirectory) -> None:
    table = torch.arange(6.0).reshape(2, 3)
    images = torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last)
    run.save_model({"transposed": table.T, "images": images}, "best_model.safetensors")
    loaded = load_file(run.path / "best_model.safetensors")
    assert torch.equal(loaded["transposed"], table.T)
    assert torch.equal(loaded["images"], images)


def test_all_files_have_the_same_permissions(run: RunDirectory) -> None:
    """A temporary file that only its owner may read must not become the model."""
    run.save_model({"w": torch.arange(3.0)})
    run.add_round(RoundRecord(1))
    modes = {path.stat().st_mode & 0o777 for path in run.path.iterdir()}
    assert len(modes) == 1


def test_a_partition_is_plotted_if_every_client_reports_its_counts(
    run: RunDirectory,
) -> None:
    run.plot_partition([(1, 2), ()], ["cat", "dog"])
    assert not [*run.path.iterdir()]
    run.plot_partition([(1, 2), (3, 0)], ["cat", "dog"])
    assert (run.path / "partition.png").is_file()
