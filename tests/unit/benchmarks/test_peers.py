"""The peers of the speed benchmark train what our app trains, on the same batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.peers import environment, images, report, sameness, turns
from benchmarks.peers.__main__ import main
from benchmarks.peers.arms import Trained
from benchmarks.peers.sameness import distance, final_accuracy
from benchmarks.peers.work import NORMS, Work, export_work
from clients import LocalTrainer, TrainSettings
from flfa_app.task import images_of, model_of, partitions_of

APP = Path(images.__file__).parent / "quickstart"
ROUNDS = 2


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of its own, fewer images, and the quickstart where its app finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLFA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(images, "TRAIN", 4_000)
        patch.setattr(images, "TEST", 200)
        patch.syspath_prepend(str(APP))
        yield
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    return export_work(tmp_path_factory.mktemp("work"), "cnn", ROUNDS)


def peer(name: str) -> Any:
    module: ModuleType = import_module(f"quickstart.{name}")
    return module


def participants(work: Work, server_round: int) -> dict[int, int]:
    """Return the seed of each participant."""
    given = json.loads((work.folder / "work.json").read_text())
    return {int(key): seed for key, seed in given["rounds"][server_round - 1].items()}


def our_data(work: Work, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    data, mine = images_of(work.config), partitions_of(work.config, 100)[client]
    labels = torch.from_numpy(data.train_labels[mine])
    return data.tensor(data.train[mine]), labels


def our_settings(work: Work, seed: int) -> TrainSettings:
    config = work.config
    return TrainSettings(
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        batch_size=config.batch_size,
        epochs=config.local_epochs,
        seed=seed,
    )


def test_the_images_are_the_same_everywhere_and_have_all_classes(
    tmp_path: Path,
) -> None:
    for name in ("one.npz", "two.npz"):
        images.write_images(tmp_path / name)
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        assert all((one[key] == two[key]).all() for key in one.files)
        assert one["train_images"].shape == (4_000, 28, 28, 3)
        assert one["train_images"].dtype == np.uint8
        for labels in (one["train_labels"], one["test_labels"]):
            assert set(labels) == set(range(8))


def test_every_image_has_one_owner_and_no_participant_a_tiny_batch(work: Work) -> None:
    with np.load(work.folder / "partition.npz") as file:
        owned = [file[f"arr_{client}"] for client in range(100)]
    assert sorted(np.concatenate(owned)) == list(range(4_000))
    for server_round in (1, 2):
        drawn = participants(work, server_round)
        assert len(drawn) == 10
        last = [len(owned[client]) % 64 for client in drawn]
        assert not {1, 2, 3} & set(last)
    assert participants(work, 1) != participants(work, 2)


@pytest.mark.parametrize("model", NORMS)
def test_the_peers_models_are_ours(model: str, tmp_path: Path) -> None:
    """The same names and shapes, and with the same weights the same logits."""
    work = export_work(tmp_path, model, 1)
    own, other = model_of(work.config), peer("given").initial_model(str(tmp_path))
    assert {k: v.shape for k, v in own.state_dict().items()} == {
        k: v.shape for k, v in other.state_dict().items()
    }
    layers = [m for m in other.modules() if list(m.parameters(recurse=False))]
    ours = [m for m in own.modules() if list(m.parameters(recurse=False))]
    # Ours may have a faster kernel of the same layer.
    assert all(isinstance(x, type(y)) for x, y in zip(ours, layers, strict=True))
    pixels = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(other.eval()(pixels), own.eval()(pixels))


def test_a_client_of_the_peers_has_our_images_in_our_order(work: Work) -> None:
    client, seed = next(iter(participants(work, 1).items()))
    inputs, targets = our_data(work, client)
    dataset = peer("given").partition(str(work.folder), client)
    torch.testing.assert_close(dataset.tensors[0], inputs)
    assert torch.equal(dataset.tensors[1], targets)

    batches: list[torch.Tensor] = []

    class Watched(LocalTrainer):
        def edit_gradients(self) -> None:
            batches.append(self.batch.clone())

    Watched(model_of(work.config), our_settings(work, seed)).fit(inputs, targets)
    assert peer("given").seed_of(str(work.folder), 1, client) == seed
    loader = peer("task").load_data(str(work.folder), client, seed)
    theirs = [labels for _ in range(work.config.local_epochs) for _, labels in loader]
    assert len(theirs) == len(batches)
    for labels, batch in zip(theirs, batches, strict=True):
        assert torch.equal(labels, targets[batch])


def test_a_client_of_the_peers_learns_what_ours_learns(work: Work) -> None:
    """Weights and running loss aside, in float32: rounding, five epochs long."""
    client, seed = next(iter(participants(work, 2).items()))
    own, folder = model_of(work.config), str(work.folder)
    start = {name: p.detach().clone() for name, p in own.named_parameters()}
    LocalTrainer(own, our_settings(work, seed)).fit(*our_data(work, client))
    other = peer("given").initial_model(folder)
    config = work.config
    peer("task").train(
        other,
        peer("task").load_data(folder, client, seed),
        config.local_epochs,
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    for name, theirs in other.named_parameters():
        ours = own.get_parameter(name)
        way = (ours - start[name]).norm()
        assert way > 0
        assert (theirs - ours).norm() < 1e-3 * way, name


def test_dropout_draws_what_it_draws_without_a_loader(work: Work) -> None:
    """A loader takes a seed for its workers from the same generator, if it may."""
    client, seed = next(iter(participants(work, 1).items()))
    torch.manual_seed(seed)
    expected = torch.rand(3)
    torch.manual_seed(seed)
    list(peer("task").load_data(str(work.folder), client, seed))
    assert torch.equal(torch.rand(3), expected)


def test_the_distance_by_hand(work: Work, tmp_path: Path) -> None:
    """Ours went a step of 2 in each weight, the other 2 and 0.5 more: a quarter.

    Buffers are not looked at, nor how the tensors lie.
    """
    start = model_of(work.config).state_dict()
    files = []
    for name, step in (("other", 2.5), ("ours", 2.0)):
        files.append(tmp_path / f"{name}.safetensors")
        save_file({k: (v + step).contiguous() for k, v in start.items()}, files[-1])
    assert distance(work, *files) == pytest.approx(0.25, rel=1e-5)
    assert distance(work, files[1], files[1]) == 0


def test_statistics_that_were_not_averaged_do_not_change_the_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sameness, "SAMPLE", 64)
    monkeypatch.setattr(sameness, "BATCH", 32)
    work = export_work(tmp_path, "mobilenet_v2_imagenet", 1)
    state = model_of(work.config).state_dict()
    found = []
    for factor in (1.0, 7.0):
        file = tmp_path / "weights.safetensors"
        buffers = {k: v * factor for k, v in state.items() if "running_" in k}
        save_file({k: v.contiguous() for k, v in (state | buffers).items()}, file)
        found.append(final_accuracy(work, file))
    assert found[0] == found[1]


def test_weights_that_are_no_numbers_are_refused(work: Work, tmp_path: Path) -> None:
    state = {k: v.contiguous() for k, v in model_of(work.config).state_dict().items()}
    state["head.bias"][3] = torch.nan
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(RuntimeError, match=r"weights\.safetensors are not finite"):
        final_accuracy(work, tmp_path / "weights.safetensors")


def test_ratios_by_hand() -> None:
    """Rounds of the same turn are compared: 3/2, 2/1 and 9/3, 8/2; median 2.5.

    numpy's quartiles of 1.5, 2, 3, 4 are 1.875 and 3.25.
    """
    seconds = {
        "ours": [[2.0, 1.0], [3.0, 2.0]],
        "ours-flfa": [[2.0, 1.0], [3.0, 2.0]],
        "pfl": [[3.0, 2.0], [9.0, 8.0]],
        "flower-quickstart": [[2.0, 1.0], [3.0, 2.0]],
    }
    same = dict.fromkeys(seconds, 0.5)
    rows = report.rows_of("mobilenet_v2", seconds, same, same)
    assert len(rows) == 4
    plain = {row["peer"]: row for row in rows if row["flfa"] == "none"}
    assert plain["pfl"]["ratio"] == 2.5
    assert plain["pfl"]["quartiles"] == [1.875, 3.25]
    assert plain["pfl"]["ratios-by-turn"] == [[1.5, 2.0], [3.0, 4.0]]
    assert plain["flower-quickstart"]["ratio"] == 1.0
    assert report.missed(rows) == ["mobilenet_v2, flower-quickstart: 1.00, goal 1.3"]
    assert report.missed(report.rows_of("cnn", seconds, same, same)) == []
    table = report.table_of(rows).splitlines()
    assert len(table) == 2 + 4
    assert table[2].startswith("| `mobilenet_v2` | pfl | none | 2.50 | 1.88 - 3.25 |")


def arms_of(work_of: dict[str, float], accuracy_of: dict[str, float]) -> Any:
    """Return arms that go a way of their own from the start, and take seconds."""

    def arm(name: str) -> Any:
        def run(work: Work, folder: Path) -> Trained:
            control = work.config.learning_rate == turns.CONTROL["learning_rate"]
            step = work_of[name] if control else accuracy_of[name]
            state = model_of(work.config).state_dict()
            weights = {k: (v + step).contiguous() for k, v in state.items()}
            save_file(weights, folder / "w.safetensors")
            rounds = work.config.num_server_rounds
            return Trained([9.0] + [1.0] * (rounds - 1), folder / "w.safetensors")

        return run

    return {name: arm(name) for name in work_of}


NAMES = ("ours", "ours-flfa", "flower-quickstart", "pfl")


def test_arms_in_turn_and_a_first_round_that_does_not_count(tmp_path: Path) -> None:
    same = dict.fromkeys(NAMES, 1.0)
    rows = turns.measure("cnn", tmp_path, arms_of(same, same), turns=2, rounds=3)
    assert {row["ratio"] for row in rows} == {1.0}
    assert all(row["ratios-by-turn"] == [[1.0] * 3] * 2 for row in rows)
    assert all(row["accuracy"] == row["accuracy-ours"] for row in rows)


def test_another_update_is_not_the_same_training(tmp_path: Path) -> None:
    """1.3 where ours is 1: 0.3 of the way."""
    same = dict.fromkeys(NAMES, 1.0)
    arms = arms_of(same | {"pfl": 1.3}, same)
    with pytest.raises(RuntimeError, match=r"cnn: not the same.*of pfl is 0\.300"):
        turns.measure("cnn", tmp_path, arms, turns=1, rounds=1)


def test_another_accuracy_is_not_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = dict.fromkeys(NAMES, 1.0)
    monkeypatch.setattr(
        turns,
        "final_accuracy",
        lambda work, weights: 0.9 if weights.parent.name == "pfl" else 0.8,
    )
    with pytest.raises(RuntimeError, match=r"cnn: not the same.*pfl 90\.0%"):
        turns.measure("cnn", tmp_path, arms_of(same, same), turns=1, rounds=1)


def test_an_environment_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "installed").touch()
    assert environment.pfl_python(tmp_path) == tmp_path / "bin" / "python"


def test_what_a_failed_command_printed_is_shown() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('a reason')"]
    with pytest.raises(RuntimeError, match="has failed:\na reason"):
        environment._run(command)


def test_turns_and_rounds_are_numbers_above_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in ("--turns", "--rounds"):
        with pytest.raises(SystemExit):
            main([option, "0"])
        assert "0 is not 1 or more" in capsys.readouterr().err
