"""Diagnostics and augmentation in whole runs, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flfa_app import client_app
from flfa_app.methods import ALGORITHMS
from tests.federation import metrics, run_app

TWO = {"num-fa-layers": 2, "local-epochs": 2}


def model_of(results: Path) -> dict[str, torch.Tensor]:
    return load_file(results / "model.safetensors")


def same_model(one: Path, other: Path) -> bool:
    first, second = model_of(one), model_of(other)
    assert first.keys() == second.keys()
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


@pytest.mark.parametrize("algorithm", ["fedavg", "moon", "fedsol", "scaffold"])
def test_a_run_with_diagnostics_is_the_same_run(algorithm: str, tmp_path: Path) -> None:
    """All it adds is a key in the rows, and numbers in the replies."""
    assert algorithm in ALGORITHMS
    keys = {**TWO, "algorithm": algorithm, "norm": "batch"}
    plain, measured = (
        run_app(tmp_path, {**keys, "diagnostics": value}) for value in (False, True)
    )
    assert same_model(plain, measured)
    rows = list(zip(metrics(plain), metrics(measured), strict=True))
    assert [len(row["selected"]) for _, row in rows] == [0, 2, 2]
    for before, row in rows:
        assert "diagnostics" not in before
        added = ("diagnostics", "bytes-received")
        assert without(row, *added) == without(before, "bytes-received")
        # In the order of the selection; the first round has none.
        assert list(row.get("diagnostics", {})) == row["selected"]
        assert ("diagnostics" in row) == bool(row["selected"])
        for values in row.get("diagnostics", {}).values():
            assert list(values) == ["angle", "error"]
            assert 0 < values["angle"] < 180
            assert values["error"] > 0


def test_a_run_without_alignment_has_nothing_to_measure(tmp_path: Path) -> None:
    rows = metrics(run_app(tmp_path, {"flfa": "none", "diagnostics": True}))
    assert not any("diagnostics" in row for row in rows)


def test_direct_feedback_has_errors_only(tmp_path: Path) -> None:
    fixed = {"flfa": "fixed", "fixed-fa-layers": "conv2,conv3", "feedback": "dfa"}
    for row in metrics(run_app(tmp_path, {**fixed, "diagnostics": True})):
        assert list(row["diagnostics"]) == ["conv2", "conv3"]
        for values in row["diagnostics"].values():
            assert list(values) == ["error"]
            assert values["error"] > 0


def test_random_feedback_is_far_off(tmp_path: Path) -> None:
    """conv3 has thousands of weights: random ones are at about 90 degrees."""
    fixed = {"flfa": "fixed", "fixed-fa-layers": "conv3", "diagnostics": True}
    near, far = (
        metrics(run_app(tmp_path, {**fixed, "feedback": feedback}))[0]["diagnostics"]
        for feedback in ("global", "random")
    )
    assert near["conv3"]["angle"] < 60 < 80 < far["conv3"]["angle"] < 100
    assert near["conv3"]["error"] < far["conv3"]["error"]


def test_a_row_has_the_mean_over_the_clients_by_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies are looked at where the client makes them."""
    sent: list[dict[str, Any]] = []
    metric_record = client_app.MetricRecord

    def noted(values: dict[str, Any]) -> Any:
        sent.append(values)
        return metric_record(values)

    monkeypatch.setattr(client_app, "MetricRecord", noted)
    keys = {"flfa": "fixed", "fixed-fa-layers": "conv2, head", "num-server-rounds": 1}
    (row,) = metrics(
        run_app(tmp_path, {**keys, "diagnostics": True, "fraction-train": 1.0})
    )
    replies = [values for values in sent if "train-loss" in values]
    assert len(replies) == len(row["participants"]) == 4
    sizes = [values["num-examples"] for values in replies]
    assert len(set(sizes)) > 1
    for layer in ("conv2", "head"):
        for name, key in (("angle", "fa-angle"), ("error", "fa-error")):
            values = [values[f"{key}/{layer}"] for values in replies]
            mean = sum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)
            assert row["diagnostics"][layer][name] == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("kind", ["crop", "crop-flip"])
def test_an_augmented_run_is_determined_by_its_seed(kind: str, tmp_path: Path) -> None:
    """Whatever the order of the replies; and it is another run than the plain one."""
    keys = {**TWO, "augmentation": kind, "diagnostics": True}
    one, other = (run_app(tmp_path, keys, order=order) for order in (1, 2))
    assert metrics(one) == metrics(other)
    assert same_model(one, other)
    plain = run_app(tmp_path, {**keys, "augmentation": "none"}, order=1)
    assert not same_model(one, plain)
    rows = list(zip(metrics(one), metrics(plain), strict=True))
    assert all(row["train-loss"] != before["train-loss"] for row, before in rows)
    # The same participants, so that runs can be compared pairwise.
    for row, before in rows:
        assert row["participants"] == before["participants"]
    seeded = run_app(tmp_path, {**keys, "seed": 1})
    assert not same_model(one, seeded)


def test_crop_and_crop_flip_are_two_runs(tmp_path: Path) -> None:
    kinds = ("crop", "crop-flip")
    one, other = (run_app(tmp_path, {"augmentation": kind}) for kind in kinds)
    assert not same_model(one, other)


@pytest.mark.parametrize("algorithm", ["moon", "fedsol"])
def test_methods_with_frozen_models_run_on_augmented_images(
    algorithm: str, tmp_path: Path
) -> None:
    """Neutral they are FedAvg on the same crops, to the bit; else they are not."""
    keys = {"augmentation": "crop-flip", "fraction-train": 1.0}
    method = {**keys, "algorithm": algorithm}
    fedavg = run_app(tmp_path, keys)
    keys = method | ALGORITHMS[algorithm].fedavg_keys
    assert same_model(fedavg, run_app(tmp_path, keys))
    strong = {"moon-mu": 5.0, "fedsol-rho": 2.0}
    assert not same_model(fedavg, run_app(tmp_path, method | strong))
