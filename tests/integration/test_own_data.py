"""The user's own data: for a whole simulation, and on each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flfa_app import server_app, task
from flfa_app.config import RunConfig
from flfa_app.data.loading import load_dataset
from tests.federation import QUICK, InProcessGrid, default_keys, metrics, run_app


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLFA_CACHE", str(tmp_path / "cache"))


def run_nodes(folder: Path, paths: list[Path]) -> list[dict[str, Any]]:
    """Run the app on nodes that have only their own file."""
    keys = default_keys() | QUICK | {"output-dir": str(folder)}
    grid = InProcessGrid(len(paths), keys)
    for context in grid.contexts.values():
        own = str(paths[context.node_config["partition-id"]])
        context.node_config["dataset-path"] = own
        del context.node_config["num-partitions"]
    server_app.main(grid, Context(1, 1, {}, RecordDict(), keys))
    (results,) = folder.iterdir()
    return metrics(results)


def write_node_files(folder: Path, nodes: int) -> list[Path]:
    """Write the digits of each simulated client to a file."""
    digits = load_dataset("digits")
    config = RunConfig.parse(default_keys())
    paths = []
    for i, part in enumerate(task.partitions_of(config, nodes)):
        paths.append(folder / f"node{i}.npz")
        np.savez(paths[-1], images=digits.train[part], labels=digits.train_labels[part])
    return paths


def test_nodes_with_the_same_data_give_the_result_of_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_node_files(tmp_path, 3)
    simulated = metrics(run_app(tmp_path / "simulated", nodes=3))

    def refuse(*args: object) -> None:
        raise AssertionError("a partition is drawn")

    monkeypatch.setattr(task, "partitions_of", refuse)
    assert run_nodes(tmp_path / "own", paths) == simulated


def test_a_node_whose_data_does_not_fit_is_named_before_the_first_round(
    tmp_path: Path,
) -> None:
    paths = write_node_files(tmp_path, 2)
    images = np.zeros((5, 28, 28, 3), np.uint8)
    np.savez(paths[1], images=images, labels=np.zeros(5, int))
    with pytest.raises(
        RuntimeError, match=r"1 of 2 nodes .*node1\.npz.*28x28 with 3 .*8x8 with 1"
    ):
        run_nodes(tmp_path / "own", paths)


def test_natural_partition(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    writers = np.array(["ada", "bob", "cyd"])[np.arange(len(digits.train)) % 3]
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        train_images=digits.train,
        train_labels=digits.train_labels,
        test_images=digits.test,
        test_labels=digits.test_labels,
        train_writer=writers,
    )
    keys = {
        "dataset": "files",
        "data-dir": str(path),
        "partitioner": "natural",
        "partition-column": "writer",
    }
    config = RunConfig.parse(default_keys() | keys)
    parts = task.partitions_of(config, 3)
    assert [set(writers[part]) for part in parts] == [{"ada"}, {"bob"}, {"cyd"}]
    assert len(metrics(run_app(tmp_path / "runs", keys, nodes=3))) == 3
    with pytest.raises(RuntimeError, match="3 different values, but there are 4 nodes"):
        run_app(tmp_path / "four", keys, nodes=4)
    with pytest.raises(RuntimeError, match=r"'scribe'; .* files have the columns writ"):
        run_app(tmp_path / "scribe", {**keys, "partition-column": "scribe"}, nodes=3)
