"""Data of the user's own: of a whole federation, and of each node."""

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
    """Run the app on nodes that have no more than a file of their own."""
    keys = default_keys() | QUICK | {"output-dir": str(folder)}
    grid = InProcessGrid(len(paths), keys)
    for context in grid.contexts.values():
        own = str(paths[context.node_config["partition-id"]])
        context.node_config["dataset-path"] = own
        del context.node_config["num-partitions"]
    server_app.main(grid, Context(1, 1, {}, RecordDict(), keys))
    (results,) = folder.iterdir()
    return metrics(results)


def parts(folder: Path, nodes: int) -> list[Path]:
    """What each simulated client would have of the digits, in a file of its own."""
    images = load_dataset("digits")
    config = RunConfig.parse(default_keys())
    paths = []
    for i, mine in enumerate(task.partitions_of(config, nodes)):
        paths.append(folder / f"node{i}.npz")
        np.savez(paths[-1], images=images.train[mine], labels=images.train_labels[mine])
    return paths


def test_nodes_with_the_same_data_give_the_result_of_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = parts(tmp_path, 3)
    simulated = metrics(run_app(tmp_path / "simulated", nodes=3))

    def no_partitioner(*args: object) -> None:
        raise AssertionError("a partitioner runs")

    monkeypatch.setattr(task, "partitions_of", no_partitioner)
    assert run_nodes(tmp_path / "own", paths) == simulated


def test_a_node_whose_data_does_not_fit_is_named_before_the_first_round(
    tmp_path: Path,
) -> None:
    paths = parts(tmp_path, 2)
    images = np.zeros((5, 28, 28, 3), np.uint8)
    np.savez(paths[1], images=images, labels=np.zeros(5, int))
    with pytest.raises(
        RuntimeError, match=r"1 of 2 nodes .*node1\.npz.*28x28 with 3 .*8x8 with 1"
    ):
        run_nodes(tmp_path / "own", paths)


def test_a_natural_partition_of_own_data(tmp_path: Path) -> None:
    images = load_dataset("digits")
    writers = np.array(["ada", "bob", "cyd"])[np.arange(len(images.train)) % 3]
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        train_images=images.train,
        train_labels=images.train_labels,
        test_images=images.test,
        test_labels=images.test_labels,
        train_writer=writers,
    )
    keys = {
        "dataset": "files",
        "data-dir": str(path),
        "partitioner": "natural",
        "partition-column": "writer",
    }
    config = RunConfig.parse(default_keys() | keys)
    held = task.partitions_of(config, 3)
    assert [set(writers[mine]) for mine in held] == [{"ada"}, {"bob"}, {"cyd"}]
    assert len(metrics(run_app(tmp_path / "runs", keys, nodes=3))) == 3
    with pytest.raises(RuntimeError, match="3 different values, but there are 4 nodes"):
        run_app(tmp_path / "four", keys, nodes=4)
    with pytest.raises(RuntimeError, match=r"'scribe'; .* files have the columns writ"):
        run_app(tmp_path / "scribe", {**keys, "partition-column": "scribe"}, nodes=3)
