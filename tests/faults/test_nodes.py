"""Whole runs whose nodes disconnect: for a while, for good, or before a resumption."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from flfa_app import server_app
from flfa_app.errors import ConfigError
from flfa_app.server import round as round_module
from tests.faults.test_resume import PowerCut
from tests.federation import RUN_IDS, InProcessGrid, default_keys, metrics, run_app

KEYS: dict[str, Any] = {
    "pictures": False,
    "local-epochs": 1,
    "num-server-rounds": 3,
    "fraction-train": 1.0,
    "round-timeout": 30.0,
}


class LocalDataGrid(InProcessGrid):
    """Nodes with local data: each knows its own partition id and no other.

    ``before_reply(message)`` is called before a node replies. It may raise, or change
    which nodes are connected.
    """

    def __init__(self, folder: Path, partitions: Iterable[int]) -> None:
        partitions = list(partitions)
        super().__init__(len(partitions), default_keys())
        contexts = zip(self.contexts.values(), partitions, strict=True)
        for context, partition in contexts:
            context.node_config = {
                "partition-id": partition,
                "dataset-path": str(write_images(folder, partition)),
            }
        self.all_nodes = list(self.nodes)
        self.before_reply: Callable[[Message], None] = lambda message: None

    def node_of(self, partition: int) -> int:
        return next(
            node
            for node, context in self.contexts.items()
            if context.node_config["partition-id"] == partition
        )

    def _answer(self, message: Message) -> Message:
        self.before_reply(message)
        return super()._answer(message)


def round_of(message: Message) -> Any:
    return message.content.config_records.get("config", {}).get("server-round")


def write_images(folder: Path, partition: int, number: int = 40) -> Path:
    """Write random images of the ten digits."""
    file = folder / f"data-{partition}.npz"
    if not file.exists():
        draw = np.random.default_rng(partition)
        images = draw.integers(0, 17, (number, 8, 8), np.uint8)
        np.savez(file, images=images, labels=np.arange(number) % 10)
    return file


def run(grid: LocalDataGrid, folder: Path, keys: dict[str, Any]) -> Path:
    """Run the ServerApp; return the directory of the results."""
    keys = default_keys() | KEYS | keys | {"output-dir": str(folder)}
    for context in grid.contexts.values():
        context.run_config = keys
    before = set(folder.glob("*"))
    server_app.main(grid, Context(next(RUN_IDS), 1, {}, RecordDict(), keys))
    new = set(folder.glob("*")) - before
    return new.pop() if new else Path(keys["resume"])


@pytest.fixture(scope="module")
def cut_in_round_3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    grid = LocalDataGrid(folder, (0, 1, 2, 5))

    def cut(message: Message) -> None:
        if round_of(message) == 3:
            raise PowerCut

    grid.before_reply = cut
    with pytest.raises(PowerCut):
        run(grid, folder / "runs", {})
    (found,) = (folder / "runs").iterdir()
    return found


@pytest.fixture
def stopped(cut_in_round_3: Path, tmp_path: Path) -> Path:
    """A copy of a run with partitions 0, 1, 2 and 5 that was cut off in round 3."""
    target = tmp_path / "runs" / cut_in_round_3.name
    return Path(shutil.copytree(cut_in_round_3, target))


def test_a_run_is_resumed_without_a_lost_node(
    stopped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalDataGrid(tmp_path, (0, 1, 5))
    run(grid, stopped.parent, {"resume": str(stopped)})
    participants = [row["participants"] for row in metrics(stopped)]
    assert participants == [[0, 1, 2, 5], [0, 1, 2, 5], [0, 1, 5]]
    assert "partition 2 is not connected; resuming without it" in caplog.text


def test_a_node_that_connects_later_takes_part_again(
    stopped: Path, tmp_path: Path
) -> None:
    grid = LocalDataGrid(tmp_path, (0, 1, 2, 5))
    grid.nodes.remove(grid.node_of(2))

    def connect(message: Message) -> None:
        if round_of(message) == 3:
            grid.nodes = grid.all_nodes

    grid.before_reply = connect
    run(grid, stopped.parent, {"resume": str(stopped), "num-server-rounds": 4})
    participants = [row["participants"] for row in metrics(stopped)]
    assert participants[2:] == [[0, 1, 5], [0, 1, 2, 5]]


def test_a_node_that_the_run_did_not_start_with_is_refused(
    stopped: Path, tmp_path: Path
) -> None:
    grid = LocalDataGrid(tmp_path, (0, 1, 2, 3))
    with pytest.raises(ConfigError, match="started without partition 3; stop the node"):
        run(grid, stopped.parent, {"resume": str(stopped)})


def test_other_data_is_refused(tmp_path: Path) -> None:
    """``data-dir`` may be another path, but not to other images."""
    files = []
    for seed in (0, 1):
        draw = np.random.default_rng(seed)
        arrays: dict[str, Any] = {}
        for part in ("train", "test"):
            arrays[f"{part}_images"] = draw.integers(0, 256, (80, 8, 8), np.uint8)
            arrays[f"{part}_labels"] = np.arange(80) % 4
        files.append(tmp_path / f"{seed}.npz")
        np.savez(files[-1], **arrays)
    keys = KEYS | {"dataset": "files", "data-dir": str(files[0])}
    first = run_app(tmp_path / "runs", keys | {"num-server-rounds": 1})
    again = keys | {"resume": str(first), "num-server-rounds": 2}
    with pytest.raises(ConfigError, match="cannot be resumed with another data set"):
        run_app(tmp_path / "runs", again | {"data-dir": str(files[1])})
    (copy := tmp_path / "copy.npz").write_bytes(files[0].read_bytes())
    last = run_app(tmp_path / "runs", again | {"data-dir": str(copy)}, new_folder=False)
    assert len(metrics(last)) == 2


def test_while_all_nodes_are_disconnected_the_round_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All nodes fail in round 2 and are connected again after the third pause."""
    grid = LocalDataGrid(tmp_path, (0, 1, 2))
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            grid.nodes = grid.all_nodes

    def disconnect(partition: int, message: Message) -> None:
        if round_of(message) == 2 and not pauses:
            grid.nodes = []
            raise RuntimeError("the cable is out")

    monkeypatch.setattr(round_module.time, "sleep", sleep)
    grid.fault = disconnect
    rows = metrics(run(grid, tmp_path / "runs", {"min-replies": 3}))
    assert [row["participants"] for row in rows] == [[0, 1, 2]] * 3
    assert rows[1]["failed-before"] == [0, 1, 2]
    assert len(pauses) == 3
    assert "only 0 nodes are connected, min-replies is 3" in caplog.text


def test_a_client_that_claims_most_of_the_data_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path, 1, number=400)
    grid = LocalDataGrid(tmp_path, (0, 1, 2))
    run(grid, tmp_path / "runs", {"num-server-rounds": 1})
    assert "partition 1 claims 400 of all 480 images" in caplog.text
    caplog.clear()
    run(grid, tmp_path / "runs", {"num-server-rounds": 1, "max-examples": 500})
    assert "of all 480 images" not in caplog.text
