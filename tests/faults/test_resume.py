"""A run that was stopped goes on as if nothing had been: the same bits."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from flfa_app.results.checkpoint import CheckpointError, Checkpoints
from flfa_app.server import evaluation
from tests.federation import metrics, run_app

BATCH = {"norm": "batch", "pictures": False}
STATEFUL = [name for name, m in ALGORITHMS.items() if m.keeps_client_state]


class PowerCut(BaseException):
    """Nothing in the app catches it."""


def cut_off(folder: Path, keys: dict[str, Any], *, in_round: int, **more: Any) -> Path:
    """Begin a run and end it while its clients compute a round."""

    def fault(partition: int, message: Any) -> None:
        config = message.content.config_records.get("config", {})
        if config.get("server-round") == in_round:
            raise PowerCut

    before = set(folder.glob("*")) if folder.exists() else set()
    with pytest.raises(PowerCut):
        run_app(folder, keys, fault=fault, **more)
    (found,) = set(folder.glob("*")) - before
    return found


def files(run: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "best_model.safetensors")
    return {name: (run / name).read_bytes() for name in names}


def assert_same(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    assert files(one) == files(other)
    kept = [sorted(p.name for p in (r / "checkpoints").iterdir()) for r in (one, other)]
    assert kept[0] == kept[1]


def resumed(run: Path, keys: dict[str, Any], **more: Any) -> Path:
    """Go on in the same folder; no new one is made."""
    before = set(run.parent.iterdir())
    again = keys | {"resume": str(run), "output-dir": str(run.parent)}
    assert run_app(run.parent, again, new_folder=False, **more) == run
    assert set(run.parent.iterdir()) == before
    return run


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_method_goes_on_with_the_same_bits(
    algorithm: str, tmp_path: Path
) -> None:
    """With ``state-dir`` also those whose clients keep a state.

    Cut off in round 4 with a checkpoint every second round: rounds 3 and 4 are done
    again, by clients that have done round 3 before.
    """
    keys = BATCH | {
        "algorithm": algorithm,
        "num-server-rounds": 6,
        "checkpoint-every": 2,
        "fedavgm-momentum": 0.5,
        "momentum": 0.5,
    }
    whole = run_app(tmp_path / "whole", keys | {"state-dir": str(tmp_path / "one")})
    keys["state-dir"] = str(tmp_path / "other")
    stopped = cut_off(tmp_path / "stopped", keys, in_round=4)
    assert_same(whole, resumed(stopped, keys))


@pytest.mark.parametrize("algorithm", STATEFUL)
def test_without_state_dir_clients_begin_anew_and_the_log_says_so(
    algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = BATCH | {"algorithm": algorithm, "num-server-rounds": 5}
    whole = run_app(tmp_path / "whole", keys)
    stopped = cut_off(tmp_path / "stopped", keys, in_round=4)
    caplog.clear()
    resumed(stopped, keys)
    assert "clients resume without the state" in caplog.text
    assert algorithm in caplog.text
    assert "is lost" not in caplog.text  # nobody was asked for it
    assert metrics(stopped)[:3] == metrics(whole)[:3]
    assert metrics(stopped) != metrics(whole)


def test_with_state_dir_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = BATCH | {"algorithm": "moon", "state-dir": str(tmp_path / "states")}
    stopped = cut_off(tmp_path / "runs", keys, in_round=2)
    resumed(stopped, keys)
    assert f"Clients restore their state from {tmp_path / 'states'}" in caplog.text


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    whole = run_app(tmp_path / "whole", BATCH | {"num-server-rounds": 5})
    short = run_app(tmp_path / "short", BATCH | {"num-server-rounds": 3})
    assert_same(whole, resumed(short, BATCH | {"num-server-rounds": 5}))
    assert json.loads((short / "summary.json").read_text())["rounds"] == 5
    assert len(json.loads((short / "config.json").read_text())["run-ids"]) == 2


def test_a_run_that_lacks_only_its_end_gets_it(tmp_path: Path) -> None:
    """Killed after the last checkpoint and before the summary."""
    whole = run_app(tmp_path, BATCH)
    expected = files(whole)
    for name in ("summary.json", *expected):
        (whole / name).unlink()
    resumed(whole, BATCH)
    assert files(whole) == expected
    assert (whole / "summary.json").exists()


def test_another_model_or_method_is_refused_with_both_values(tmp_path: Path) -> None:
    stopped = cut_off(tmp_path, BATCH, in_round=3)
    lines = (stopped / "metrics.jsonl").read_bytes()
    other = {"algorithm": "fedprox", "norm": "group", "round-timeout": 5.0}
    with pytest.raises(ConfigError) as refused:
        run_app(tmp_path, BATCH | other | {"resume": str(stopped)})
    text = str(refused.value)
    assert "algorithm was 'fedavg' and is 'fedprox'" in text
    assert "norm was 'batch' and is 'group'" in text
    assert "round-timeout" not in text  # changes nothing of what is computed
    assert str(stopped) in text
    assert (stopped / "metrics.jsonl").read_bytes() == lines


def test_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    stopped = cut_off(tmp_path, BATCH, in_round=3, nodes=4)
    with pytest.raises(ConfigError, match=r"num-partitions was \[4\] and is \[5\]"):
        run_app(tmp_path, BATCH | {"resume": str(stopped)}, nodes=5)


def test_a_run_without_checkpoint_cannot_go_on(tmp_path: Path) -> None:
    stopped = cut_off(tmp_path, BATCH | {"checkpoint-every": 0}, in_round=3)
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        run_app(tmp_path, BATCH | {"resume": str(stopped)})


def test_two_runs_cannot_use_one_directory(tmp_path: Path) -> None:
    stopped = cut_off(tmp_path, BATCH, in_round=3)
    with (stopped / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="is in use by another run"):
            run_app(tmp_path, BATCH | {"resume": str(stopped)})


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = BATCH | {"num-server-rounds": 6}
    whole = run_app(tmp_path / "whole", keys)
    stopped = cut_off(tmp_path / "stopped", keys, in_round=5)
    last = stopped / "checkpoints" / "round-000004.safetensors"
    content = bytearray(last.read_bytes())
    content[-5] ^= 1  # one bit of a weight
    last.write_bytes(content)
    resumed(stopped, keys)
    assert "round-000004" in caplog.text
    assert "the checkpoint before it is used" in caplog.text
    assert_same(whole, stopped)


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    keys = BATCH | {"num-server-rounds": 6, "learning-rate": 0.5, "keep-checkpoints": 2}
    run = run_app(tmp_path, keys)
    rows = metrics(run)
    best = max(rows, key=lambda row: row["accuracy"])["round"]
    kept = sorted(p.stem for p in (run / "checkpoints").glob("*.json"))
    assert kept == sorted({f"round-{r:06d}" for r in (best, 5, 6)})
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best-round"] == best


def with_accuracies(monkeypatch: pytest.MonkeyPatch, planned: list[float]) -> None:
    """Let the evaluations find these accuracies, one after the other."""
    left = iter(planned)
    monkeypatch.setattr(evaluation, "accuracy", lambda logits, labels: next(left))


@pytest.mark.parametrize(
    ("last", "best", "harm"),
    [(0.4, 3, "changed"), (0.5, 3, "missing"), (0.6, 4, "changed")],
)
def test_a_best_model_that_is_lost_is_told_and_the_best_that_is_left_kept(
    last: float,
    best: int,
    harm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of rounds 1 to 4 there are checkpoints of 1 (the best), 3 and 4.

    Without round 1 that is the better of 3 and 4, the first if they are alike; not 2,
    which was better than 3, but of which there has been no checkpoint since round 4.
    """
    planned = [0.9, 0.55, 0.5, last]
    keys = BATCH | {"keep-checkpoints": 2}
    with_accuracies(monkeypatch, [*planned, 0.1])
    stopped = cut_off(tmp_path / "a", keys | {"num-server-rounds": 5}, in_round=5)
    damaged = stopped / "checkpoints" / "round-000001.safetensors"
    if harm == "missing":
        damaged.unlink()
    else:
        content = damaged.read_bytes()
        damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    caplog.clear()
    resumed(stopped, keys | {"num-server-rounds": 5})
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [str(damaged.with_suffix("")) in text for text in warnings] == [True, False]
    assert "the model of round 1 is lost" in warnings[0]
    assert f"the best remaining model is that of round {best}" in warnings[1]
    summary = json.loads((stopped / "summary.json").read_text())
    assert summary["best-round"] == best
    assert summary["best-accuracy"] == planned[best - 1]
    # The model after a round is the last one of a run that ends with it.
    with_accuracies(monkeypatch, planned)
    shorter = run_app(tmp_path / "b", keys | {"num-server-rounds": best})
    kept = (stopped / "best_model.safetensors").read_bytes()
    assert kept == (shorter / "model.safetensors").read_bytes()
    assert [row["accuracy"] for row in metrics(stopped)] == [*planned, 0.1]


def test_a_best_model_that_is_there_is_nothing_to_warn_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_accuracies(monkeypatch, [0.9, 0.2, 0.3, 0.4])
    keys = BATCH | {"num-server-rounds": 4, "keep-checkpoints": 1}
    stopped = cut_off(tmp_path, keys, in_round=4)
    caplog.clear()
    resumed(stopped, keys)
    assert "WARNING" not in caplog.text
    assert json.loads((stopped / "summary.json").read_text())["best-round"] == 1


def states(folder: Path) -> dict[int, list[int]]:
    """The rounds of the states on disk, by partition."""
    (run,) = folder.iterdir()
    return {
        int(place.name.removeprefix("partition-")): sorted(
            int(file.stem.removeprefix("round-")) for file in place.iterdir()
        )
        for place in run.iterdir()
    }


@pytest.mark.parametrize("algorithm", STATEFUL)
def test_without_checkpoints_only_the_last_states_are_kept(
    algorithm: str, tmp_path: Path
) -> None:
    """Nobody can go back: a client needs the last state, and has just made another."""
    keys = BATCH | {
        "algorithm": algorithm,
        "num-server-rounds": 7,
        "checkpoint-every": 0,
        "state-dir": str(tmp_path / "states"),
    }
    rows = metrics(run_app(tmp_path / "run", keys))
    took_part: dict[int, list[int]] = {}
    for row in rows:
        for partition in row["participants"]:
            took_part.setdefault(partition, []).append(row["round"])
    assert max(map(len, took_part.values())) > 2
    expected = {partition: rounds[-2:] for partition, rounds in took_part.items()}
    assert states(tmp_path / "states") == expected


def test_files_that_are_named_nearly_like_checkpoints_are_left_alone(
    tmp_path: Path,
) -> None:
    """A copy that somebody has made, of a checkpoint or of a client's state."""
    keys = BATCH | {"algorithm": "moon", "state-dir": str(tmp_path / "states")}
    stopped = cut_off(tmp_path / "runs", keys, in_round=3)
    folders = [stopped / "checkpoints", *(tmp_path / "states").glob("*/*")]
    assert len(folders) > 2
    names = ("round-000002 (copy)", "round-2", "round-0000002", "round-x", "round-")
    copies = [
        folder / f"{name}{suffix}"
        for folder in folders
        for name in names
        for suffix in (".json", ".safetensors")
    ]
    for copy in copies:
        copy.write_text("not ours")
    assert Checkpoints.of_run(stopped).rounds() == [1, 2]
    auto = keys | {"resume": "auto"}
    assert run_app(stopped.parent, auto, new_folder=False) == stopped
    for copy in copies:
        assert copy.read_text() == "not ours"
        copy.unlink()
    whole = run_app(tmp_path / "whole", keys | {"state-dir": str(tmp_path / "other")})
    assert_same(whole, stopped)
