"""Whole runs whose nodes disconnect: for a while, for good, or before a resumption."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from flfa_app import client_app, server_app
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
ROUND = "server-round"


class Hospital(InProcessGrid):
    """Nodes with data of their own: each knows its number and of no other.

    ``switch(grid, message)`` may raise, or change who is connected.
    """

    def __init__(
        self, folder: Path, parts: Iterable[int], keys: dict[str, Any]
    ) -> None:
        parts = list(parts)
        super().__init__(len(parts), keys)
        for context, part in zip(self.contexts.values(), parts, strict=True):
            context.node_config = {
                "partition-id": part,
                "dataset-path": str(own_data(folder, part)),
            }
        self.everyone = list(self.nodes)
        self.switch: Any = lambda message: None

    def node_of(self, partition: int) -> int:
        return next(
            node
            for node, context in self.contexts.items()
            if context.node_config["partition-id"] == partition
        )

    def _answer(self, message: Message) -> Message:
        self.switch(message)
        return super()._answer(message)


def own_data(folder: Path, part: int) -> Path:
    """Four images of each digit, in shades of grey drawn with the node's number."""
    file = folder / f"data-{part}.npz"
    if not file.exists():
        draw = np.random.default_rng(part)
        images = draw.integers(0, 17, (40, 8, 8), np.uint8)
        np.savez(file, images=images, labels=np.arange(40) % 10)
    return file


def run(grid: Hospital, folder: Path, keys: dict[str, Any]) -> Path:
    """Run the ServerApp; return its directory."""
    keys = default_keys() | KEYS | keys | {"output-dir": str(folder)}
    for context in grid.contexts.values():
        context.run_config = keys
    before = set(folder.glob("*"))
    server_app.main(grid, Context(next(RUN_IDS), 1, {}, RecordDict(), keys))
    new = set(folder.glob("*")) - before
    return new.pop() if new else Path(keys["resume"])


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of the partitions 0, 1, 2 and 5 that was cut off in round 3."""
    grid = Hospital(tmp_path, (0, 1, 2, 5), default_keys())

    def switch(message: Message) -> None:
        if message.content.config_records.get("config", {}).get(ROUND) == 3:
            raise PowerCut

    grid.switch = switch
    with pytest.raises(PowerCut):
        run(grid, tmp_path / "runs", {})
    (found,) = (tmp_path / "runs").iterdir()
    return found


def test_a_run_goes_on_without_a_node_that_is_lost(
    stopped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Hospital(tmp_path, (0, 1, 5), default_keys())
    run(grid, stopped.parent, {"resume": str(stopped), "num-server-rounds": 4})
    rows = metrics(stopped)
    assert [row["participants"] for row in rows] == [[0, 1, 2, 5]] * 2 + [[0, 1, 5]] * 2
    assert "partition 2 is not connected; resuming without it" in caplog.text


def test_a_node_that_comes_later_takes_part_again(
    stopped: Path, tmp_path: Path
) -> None:
    grid = Hospital(tmp_path, (0, 1, 2, 5), default_keys())
    grid.nodes.remove(grid.node_of(2))

    def switch(message: Message) -> None:
        if message.content.config_records.get("config", {}).get(ROUND) == 3:
            grid.nodes = grid.everyone

    grid.switch = switch
    run(grid, stopped.parent, {"resume": str(stopped), "num-server-rounds": 4})
    took_part = [row["participants"] for row in metrics(stopped)]
    assert took_part[2:] == [[0, 1, 5], [0, 1, 2, 5]]


def test_a_node_that_was_not_there_is_refused(stopped: Path, tmp_path: Path) -> None:
    grid = Hospital(tmp_path, (0, 1, 2, 3), default_keys())
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
    first = run_app(tmp_path / "runs", keys)
    again = keys | {"resume": str(first), "num-server-rounds": 5}
    with pytest.raises(ConfigError, match="cannot be resumed with another data set"):
        run_app(tmp_path / "runs", again | {"data-dir": str(files[1])})
    (copy := tmp_path / "copy.npz").write_bytes(files[0].read_bytes())
    last = run_app(tmp_path / "runs", again | {"data-dir": str(copy)}, new_folder=False)
    assert len(metrics(last)) == 5


def test_fewer_rounds_than_have_been_done_are_refused(
    stopped: Path, tmp_path: Path
) -> None:
    grid = Hospital(tmp_path, (0, 1, 2, 5), default_keys())
    with pytest.raises(ConfigError, match=r"num-server-rounds is 1, .* completed 2"):
        run(grid, stopped.parent, {"resume": str(stopped), "num-server-rounds": 1})


def test_when_all_are_away_the_round_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Everyone is cut off in round 2 and back at the third look."""
    grid = Hospital(tmp_path, (0, 1, 2), default_keys())
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            grid.nodes = grid.everyone

    def switch(message: Message) -> None:
        config = message.content.config_records.get("config", {})
        if config.get(ROUND) == 2 and not looks:
            grid.nodes = []
            raise RuntimeError("the cable is out")

    monkeypatch.setattr(round_module.time, "sleep", sleep)
    original = client_app.app

    def client(message: Message, context: Context) -> Message:
        switch(message)
        return original(message, context)

    monkeypatch.setattr(client_app, "app", client)
    rows = metrics(run(grid, tmp_path / "runs", {"min-replies": 3}))
    assert [row["participants"] for row in rows] == [[0, 1, 2]] * 3
    assert rows[1]["failed-before"] == [0, 1, 2]
    assert len(looks) == 3
    assert "only 0 nodes are connected, min-replies is 3" in caplog.text


def test_a_client_that_says_it_has_most_of_the_data_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Hospital(tmp_path, (0, 1, 2), default_keys())
    draw = np.random.default_rng(9)
    images = draw.integers(0, 17, (400, 8, 8), np.uint8)
    np.savez(own_data(tmp_path, 1), images=images, labels=np.arange(400) % 10)
    run(grid, tmp_path / "runs", {"num-server-rounds": 1})
    assert "partition 1 claims 400 of all 480 images" in caplog.text
    caplog.clear()
    run(grid, tmp_path / "runs", {"num-server-rounds": 1, "max-examples": 500})
    assert "claims" not in caplog.text
