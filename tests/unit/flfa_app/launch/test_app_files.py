from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from flfa_app.launch.app_files import absolute_paths, copy_app, find_results
from tests.federation import ROOT


def test_paths_are_relative_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"data-dir": "mine", "state-dir": "", "resume": "auto", "other-key": 1}
    expected = config | {"data-dir": str(tmp_path / "mine")}
    assert absolute_paths(config) == expected


def test_the_copy_is_the_bundle_that_flwr_run_would_send(tmp_path: Path) -> None:
    copy = copy_app(ROOT, tmp_path / "app")
    assert not (copy / "tests").exists()
    # Flower would search the virtual environment as well, for seconds.
    outside = shutil.ignore_patterns(".venv", "runs", ".*_cache", ".git")
    checkout = shutil.copytree(ROOT, tmp_path / "checkout", ignore=outside)
    assert build_fab_from_disk(copy) == build_fab_from_disk(checkout)


def test_results_are_found_by_the_id_of_a_run(tmp_path: Path) -> None:
    assert find_results("7", tmp_path) is None
    first = tmp_path / "20260101-000000-fedavg-7"
    resumed = tmp_path / "20260101-000001-fedavg-17"
    for folder, ids in ((first, ["7"]), (resumed, ["17", "8"])):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"run-ids": ids}))
    assert find_results("7", tmp_path) == first
    assert find_results("8", tmp_path) == resumed
