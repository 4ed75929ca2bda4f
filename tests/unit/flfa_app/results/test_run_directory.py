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
from flfa_app.results.run_directory import RunDirectory

REST: dict[str, Any] = {"no_op_rounds": None, "stopped_early": None, "seconds": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(RunConfig(output_dir=str(tmp_path)), 7)


def test_the_name_of_the_directory_describes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = RunDirectory.create(RunConfig(flfa="none", seed=3), 7)
    assert run.path.parent == tmp_path / "runs"
    assert run.path.name.endswith("-digits-cnn-fedavg-bp-s3-7")
    other = RunDirectory.create(RunConfig(output_dir="~/x", flfa="auto"), 8)
    assert other.path.parent == tmp_path / "home" / "x"
    assert other.path.name.endswith("-auto-s0-8")
    assert len(run.short_name) == len(other.short_name) == 24
    assert run.short_name != other.short_name
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match=r"output-dir: cannot create .*file"):
        RunDirectory.create(RunConfig(output_dir="file"), 7)


def test_the_config_of_a_resumed_run_has_all_run_ids(run: RunDirectory) -> None:
    for run_id in (7, 9):
        run.write_config(RunConfig(seed=3), run_id, {"nodes": 4})
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


def test_the_summary_names_the_best_round_whose_model_exists(run: RunDirectory) -> None:
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
    assert math.isnan(summary["auc"])
    written = json.loads((run.path / "summary.json").read_text())
    assert list(written) == list(summary)
    assert (written["auc"], written["score"]) == (None, 0.1)


def test_a_model_is_saved_whatever_its_strides(run: RunDirectory) -> None:
    """With the permissions of other files, not those of a temporary file."""
    table = torch.arange(6.0).reshape(2, 3)
    images = torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last)
    run.save_model({"transposed": table.T, "images": images}, "best_model.safetensors")
    loaded = load_file(run.path / "best_model.safetensors")
    assert torch.equal(loaded["transposed"], table.T)
    assert torch.equal(loaded["images"], images)
    run.add_round(RoundRecord(1))
    assert len({path.stat().st_mode & 0o777 for path in run.path.iterdir()}) == 1


def test_a_partition_is_plotted_if_every_client_reports_its_counts(
    run: RunDirectory,
) -> None:
    run.plot_partition([(1, 2), ()], ["cat", "dog"])
    assert not [*run.path.iterdir()]
    run.plot_partition([(1, 2), (3, 0)], ["cat", "dog"])
    assert (run.path / "partition.png").is_file()
