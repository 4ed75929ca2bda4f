"""A resumed run has the same bits as one that was never stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from flfa_app.results.checkpoint import CheckpointError, Checkpoints
from flfa_app.results.run_directory import RunDirectory
from flfa_app.server import evaluation
from tests.federation import metrics, run_app

KEYS: dict[str, Any] = {
    "norm": "batch",  # BatchNorm's buffers as well
    "pictures": False,
    "train-fraction": 0.3,
    "num-server-rounds": 4,
    "checkpoint-every": 2,
    "evaluate-every": 4,  # a best model would add a checkpoint
    "momentum": 0.5,
    "fedavgm-momentum": 0.5,
}
EVERY_ROUND = {"checkpoint-every": 1, "evaluate-every": 1}
# FedAvg, and every method with something to restore besides model and selection.
METHODS = ["fedavg", "fedavgm", "moon", "fedacg", "feddyn", "scaffold"]
Runs = Callable[..., Path]


class PowerCut(BaseException):
    """Ends a run at once: nothing in the app catches it."""


def cut_off(folder: Path, keys: dict[str, Any], *, in_round: int) -> Path:
    """Start a run and end it while its clients compute a round."""

    def fault(partition: int, message: Any) -> None:
        config = message.content.config_records.get("config", {})
        if config.get("server-round") == in_round:
            raise PowerCut

    before = set(folder.glob("*")) if folder.exists() else set()
    with pytest.raises(PowerCut):
        run_app(folder, keys, fault=fault)
    (run,) = set(folder.glob("*")) - before
    return run


def resume(run: Path, keys: dict[str, Any]) -> None:
    """Resume a run in its own directory; no new one is made."""
    before = set(run.parent.iterdir())
    assert run_app(run.parent, keys | {"resume": str(run)}, new_folder=False) == run
    assert set(run.parent.iterdir()) == before


def models(run: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "best_model.safetensors")
    return {name: (run / name).read_bytes() for name in names}


def assert_same(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    assert models(one) == models(other)
    files = [
        sorted(p.name for p in (r / "checkpoints").iterdir()) for r in (one, other)
    ]
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Returns an undisturbed run of a method with ``state-dir``; each runs once."""
    runs: dict[str, Path] = {}

    def complete_run(algorithm: str = "fedavg") -> Path:
        if algorithm not in runs:
            folder = tmp_path_factory.mktemp(algorithm)
            keys = {"algorithm": algorithm, "state-dir": str(folder / "states")}
            runs[algorithm] = run_app(folder / "runs", KEYS | keys)
        return runs[algorithm]

    return complete_run


@pytest.fixture(scope="module")
def cut_in_round_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = KEYS | {"checkpoint-every": 1}
    return cut_off(tmp_path_factory.mktemp("stopped"), keys, in_round=4)


@pytest.fixture
def stopped(cut_in_round_4: Path, tmp_path: Path) -> Path:
    """A copy of a run of FedAvg that was cut off in round 4.

    It has checkpoints of rounds 2 and 3.
    """
    return Path(shutil.copytree(cut_in_round_4, tmp_path / cut_in_round_4.name))


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_resumed_run_has_the_same_bits(
    algorithm: str, complete: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut off in round 4 with a checkpoint of round 2.

    Rounds 3 and 4 are repeated by clients that have done round 3 before. ``state-dir``
    restores the state of the clients that have one.
    """
    states = tmp_path / "states"
    keys = KEYS | {"algorithm": algorithm, "state-dir": str(states)}
    stopped = cut_off(tmp_path / "stopped", keys, in_round=4)
    resume(stopped, keys)
    assert_same(complete(algorithm), stopped)
    assert "Resuming after round 2" in caplog.text
    restored = f"Clients restore their state from {states}" in caplog.text
    assert restored == states.exists() == ALGORITHMS[algorithm].keeps_client_state


def test_the_other_methods_have_nothing_else_to_restore() -> None:
    for name in ALGORITHMS.keys() - set(METHODS):
        method = ALGORITHMS[name]
        assert not method.keeps_client_state
        assert not getattr(method.strategy, "state_names", ())


def test_without_state_dir_clients_resume_without_state(
    complete: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KEYS | {"algorithm": "scaffold"}
    stopped = cut_off(tmp_path, keys, in_round=3)
    resume(stopped, keys)
    assert "the clients resume without the state they had for scaffold" in caplog.text
    assert "is lost" not in caplog.text  # the server asked for none
    expected = [row["drift"] for row in metrics(complete("scaffold"))]
    drift = [row["drift"] for row in metrics(stopped)]
    assert drift[:2] == expected[:2]
    assert drift[2:] != expected[2:]


def test_a_run_can_be_made_longer(complete: Runs, tmp_path: Path) -> None:
    run = run_app(tmp_path, KEYS | {"num-server-rounds": 2})
    resume(run, KEYS)
    model = "model.safetensors"
    assert (run / model).read_bytes() == (complete() / model).read_bytes()
    # The short run was evaluated after its last round, too.
    assert metrics(run)[2:] == metrics(complete())[2:]
    assert json.loads((run / "summary.json").read_text())["rounds"] == 4
    assert len(json.loads((run / "config.json").read_text())["run-ids"]) == 2


def test_a_run_that_lacks_only_its_last_files_gets_them(
    complete: Runs, tmp_path: Path
) -> None:
    """Killed after the last checkpoint and before the summary."""
    run = Path(shutil.copytree(complete(), tmp_path / complete().name))
    for name in ("summary.json", *models(run)):
        (run / name).unlink()
    resume(run, KEYS)
    assert models(run) == models(complete())
    assert (run / "summary.json").exists()


def test_auto_resumes_an_unfinished_run_or_starts_a_new_one(
    stopped: Path, complete: Runs
) -> None:
    keys = KEYS | {"resume": "auto"}
    assert run_app(stopped.parent, keys, new_folder=False) == stopped
    assert models(stopped) == models(complete())
    assert run_app(stopped.parent, keys | {"num-server-rounds": 1}) != stopped


def test_another_model_or_method_is_refused_with_both_values(stopped: Path) -> None:
    lines = (stopped / "metrics.jsonl").read_bytes()
    other = {"algorithm": "fedprox", "norm": "group", "round-timeout": 5.0}
    with pytest.raises(ConfigError) as refused:
        run_app(stopped.parent, KEYS | other | {"resume": str(stopped)})
    text = str(refused.value)
    assert "algorithm was 'fedavg' and is 'fedprox'" in text
    assert "norm was 'batch' and is 'group'" in text
    assert "round-timeout" not in text  # it does not change what is computed
    assert str(stopped) in text
    assert (stopped / "metrics.jsonl").read_bytes() == lines


def test_another_number_of_nodes_is_refused(stopped: Path) -> None:
    with pytest.raises(ConfigError, match=r"num-partitions was \[4\] and is \[5\]"):
        run_app(stopped.parent, KEYS | {"resume": str(stopped)}, nodes=5)


def test_a_run_without_checkpoint_cannot_be_resumed(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        run_app(stopped.parent, KEYS | {"resume": str(stopped)})


def test_two_processes_cannot_use_one_directory(stopped: Path) -> None:
    with (
        RunDirectory(stopped, "cnn").lock(),
        pytest.raises(RuntimeError, match="is in use by another run"),
    ):
        run_app(stopped.parent, KEYS | {"resume": str(stopped)})


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_is_used(
    stopped: Path, complete: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    last = stopped / "checkpoints" / "round-000003.safetensors"
    content = bytearray(last.read_bytes())
    content[-5] ^= 1  # one bit of a weight
    last.write_bytes(content)
    resume(stopped, KEYS)
    assert "round-000003" in caplog.text
    assert "the checkpoint before it is used" in caplog.text
    assert metrics(stopped) == metrics(complete())
    assert models(stopped) == models(complete())


def plan_accuracies(monkeypatch: pytest.MonkeyPatch, *planned: float) -> None:
    """Let the evaluations find these accuracies, one after the other."""
    left = iter(planned)
    monkeypatch.setattr(evaluation, "accuracy", lambda logits, labels: next(left))


@pytest.mark.parametrize(
    ("last", "best", "harm"),
    [(0.4, 3, "changed"), (0.5, 3, "missing"), (0.6, 4, "changed")],
)
def test_if_the_best_model_is_lost_the_best_remaining_one_is_used(
    last: float,
    best: int,
    harm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of rounds 1 to 4 there are checkpoints of 1 (the best), 3 and 4.

    Without round 1 the best is the better one of 3 and 4, the first if they are equal.
    It is not round 2, which was better than 3 but has no checkpoint any more.
    """
    planned = [0.9, 0.55, 0.5, last, 0.1]
    plan_accuracies(monkeypatch, *planned)
    keys = KEYS | EVERY_ROUND | {"num-server-rounds": 5}
    stopped = cut_off(tmp_path, keys, in_round=5)
    checkpoints = Checkpoints(stopped)
    assert checkpoints.rounds() == [1, 3, 4]
    expected = checkpoints.read(best).model
    damaged = stopped / "checkpoints" / "round-000001.safetensors"
    if harm == "missing":
        damaged.unlink()
    else:
        content = damaged.read_bytes()
        damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    caplog.clear()
    resume(stopped, keys)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [str(damaged.with_suffix("")) in text for text in warnings] == [True, False]
    assert "the model of round 1 is lost" in warnings[0]
    assert f"the best remaining model is that of round {best}" in warnings[1]
    summary = json.loads((stopped / "summary.json").read_text())
    assert summary["best-round"] == best
    assert summary["best-accuracy"] == planned[best - 1]
    saved = load_file(stopped / "best_model.safetensors")
    assert {k: v.tobytes() for k, v in saved.items()} == {
        k: v.tobytes() for k, v in expected.items()
    }
    assert [row["accuracy"] for row in metrics(stopped)] == planned


def test_a_best_model_with_a_checkpoint_is_restored_without_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan_accuracies(monkeypatch, 0.9, 0.2, 0.3, 0.4)
    keys = KEYS | EVERY_ROUND | {"keep-checkpoints": 1}
    stopped = cut_off(tmp_path, keys, in_round=4)
    caplog.clear()
    resume(stopped, keys)
    assert "WARNING" not in caplog.text
    assert json.loads((stopped / "summary.json").read_text())["best-round"] == 1


def test_without_checkpoints_only_the_last_states_are_on_disk(tmp_path: Path) -> None:
    """The run cannot be resumed: a client needs no more than its last state."""
    folder = tmp_path / "states"
    keys = KEYS | {
        "algorithm": "scaffold",
        "num-server-rounds": 6,
        "checkpoint-every": 0,
        "state-dir": str(folder),
    }
    rows = metrics(run_app(tmp_path / "run", keys))
    rounds: dict[int, list[int]] = {}
    for row in rows:
        for partition in row["participants"]:
            rounds.setdefault(partition, []).append(row["round"])
    assert max(map(len, rounds.values())) > 2
    for partition, trained in rounds.items():
        files = folder.glob(f"*/partition-{partition}/*")
        saved = sorted(int(file.stem.removeprefix("round-")) for file in files)
        assert saved == trained[-2:]


def test_files_with_similar_names_are_left_alone(
    complete: Runs, tmp_path: Path
) -> None:
    """Copies that somebody has made of a checkpoint or of a client's state."""
    keys = KEYS | {"algorithm": "moon", "state-dir": str(tmp_path / "states")}
    stopped = cut_off(tmp_path / "runs", keys, in_round=3)
    folders = [stopped / "checkpoints", *(tmp_path / "states").glob("*/*")]
    assert len(folders) > 2
    copies = [
        folder / f"{name}{suffix}"
        for folder in folders
        for name in ("round-000002 (copy)", "round-2", "round-0000002", "round-x")
        for suffix in (".json", ".safetensors")
    ]
    for copy in copies:
        copy.write_text("not ours")
    resume(stopped, keys)
    for copy in copies:
        assert copy.read_text() == "not ours"
        copy.unlink()
    assert_same(complete("moon"), stopped)
