"""Which states a client keeps, in memory and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict
from torch import Tensor

from flfa_app.client.state import ClientState


def state(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((2, 3), value).t()}  # not contiguous


def value_of(loaded: dict[str, Tensor]) -> float | None:
    return float(loaded["w"][0, 0]) if loaded else None


def client(
    records: RecordDict, message_config: dict[str, Any], folder: Path | str = ""
) -> ClientState:
    return ClientState(records, message_config, str(folder), partition_id=3)


def saved_rounds(folder: Path) -> list[int]:
    files = (folder / "run" / "partition-3").iterdir()
    return sorted(int(file.stem.removeprefix("round-")) for file in files)


def test_a_client_restores_the_state_of_the_round_that_the_server_names() -> None:
    records = RecordDict()
    assert client(records, {"state-round": 0}).load() == {}
    client(records, {"state-round": 0}).save(1, state(1.0))
    client(records, {"state-round": 1}).save(2, state(2.0))
    # The reply of round 2 was lost: the server still names round 1.
    assert value_of(client(records, {"state-round": 1}).load()) == 1.0
    assert value_of(client(records, {"state-round": 2}).load()) == 2.0


def test_older_records_are_deleted_from_memory() -> None:
    """The named round's stays: the reply that is being made may be lost."""
    records = RecordDict()
    for server_round in (1, 2, 3, 5):
        client(records, {"state-round": max(0, server_round - 1)}).save(
            server_round, state(server_round)
        )
    assert [*records.array_records] == ["trainer-state-5"]
    client(records, {"state-round": 5}).save(6, state(6.0))
    assert [*records.array_records] == ["trainer-state-5", "trainer-state-6"]


def test_records_of_others_stay_in_memory() -> None:
    records = RecordDict()
    client(records, {}).save(1, state(1.0))
    records["another-1"] = records["trainer-state-1"]
    client(records, {}).save(9, state(9.0))
    assert [*records.array_records] == ["another-1", "trainer-state-9"]


def test_a_lost_state_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert client(RecordDict(), {"state-round": 4}).load() == {}
    assert "the state of round 4 is lost" in caplog.text


def test_on_disk_a_state_survives_the_process(tmp_path: Path) -> None:
    config = {"state-round": 0, "state-keep": 0, "run-name": "run"}
    client(RecordDict(), config, tmp_path).save(1, state(1.0))
    loaded = client(RecordDict(), config | {"state-round": 1}, tmp_path).load()
    assert torch.equal(loaded["w"], state(1.0)["w"])


def test_on_disk_only_the_rounds_that_can_be_asked_for_are_kept(tmp_path: Path) -> None:
    """From the server's oldest checkpoint to the present round, and no later one.

    Later rounds are those of a run that was resumed from an earlier checkpoint.
    """
    keep_all = {"state-round": 0, "state-keep": 0, "run-name": "run"}
    for server_round in (1, 2, 3, 4, 8):
        client(RecordDict(), keep_all, tmp_path).save(server_round, state(1.0))
    assert saved_rounds(tmp_path) == [1, 2, 3, 4, 8]
    config = {"state-round": 3, "state-keep": 2, "run-name": "run"}
    client(RecordDict(), config, tmp_path).save(5, state(5.0))
    assert saved_rounds(tmp_path) == [2, 3, 4, 5]


def test_a_damaged_file_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"state-round": 1, "state-keep": 1, "run-name": "run"}
    client(RecordDict(), config, tmp_path).save(1, state(1.0))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert client(RecordDict(), config, tmp_path).load() == {}
    assert f"{file} is lost" in caplog.text


def test_a_method_without_state_writes_nothing(tmp_path: Path) -> None:
    """Neither a record nor a folder, also with a ``state-dir``."""
    records = RecordDict()
    # The server of a method without state sends none of the keys.
    client(records, {}, tmp_path).save(1, {})
    client(records, {"run-name": "run"}, tmp_path).save(1, {})
    assert not records
    assert [*tmp_path.iterdir()] == []


def test_without_the_name_of_a_run_states_stay_in_memory(tmp_path: Path) -> None:
    records = RecordDict()
    client(records, {"state-round": 0}, tmp_path).save(1, state(1.0))
    assert [*tmp_path.iterdir()] == []
    assert value_of(client(records, {"state-round": 1}, tmp_path).load()) == 1.0


def test_a_home_directory_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    client(RecordDict(), {"run-name": "run"}, "~/states").save(1, state(1.0))
    assert saved_rounds(tmp_path / "states") == [1]
