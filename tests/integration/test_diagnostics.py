"""Diagnostics and augmentation in whole runs, in one process.

That neither changes what a method computes is tested for every method in
``tests/unit/clients``; here they reach the clients, the replies and the records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flfa_app import client_app
from flfa_app.methods import ALGORITHMS
from tests.federation import metrics, run_app

SMALL = {"pictures": False, "train-fraction": 0.3}
DIAGNOSTICS = {**SMALL, "diagnostics": True}


def same_model(one: Path, other: Path) -> bool:
    first, second = (load_file(run / "model.safetensors") for run in (one, other))
    assert first.keys() == second.keys()
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


@pytest.mark.parametrize("algorithm", ["fedsol", "scaffold"])
def test_a_run_with_diagnostics_is_the_same_run(algorithm: str, tmp_path: Path) -> None:
    """All that is added is a key in the records, and numbers in the replies."""
    keys = {**SMALL, "num-fa-layers": 2, "algorithm": algorithm, "norm": "batch"}
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


def test_a_run_without_alignment_has_no_diagnostics(tmp_path: Path) -> None:
    rows = metrics(run_app(tmp_path, {**DIAGNOSTICS, "flfa": "none"}))
    assert not any("diagnostics" in row for row in rows)


def test_direct_feedback_has_errors_only(tmp_path: Path) -> None:
    fixed = {"flfa": "fixed", "fixed-fa-layers": "conv2,conv3", "feedback": "dfa"}
    for row in metrics(run_app(tmp_path, {**DIAGNOSTICS, **fixed})):
        assert list(row["diagnostics"]) == ["conv2", "conv3"]
        for values in row["diagnostics"].values():
            assert list(values) == ["error"]
            assert values["error"] > 0


def test_a_record_has_the_mean_over_the_clients_by_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies are intercepted where the client builds them."""
    sent: list[dict[str, Any]] = []
    metric_record = client_app.MetricRecord

    def intercept(values: dict[str, Any]) -> Any:
        sent.append(values)
        return metric_record(values)

    monkeypatch.setattr(client_app, "MetricRecord", intercept)
    keys = {"flfa": "fixed", "fixed-fa-layers": "conv2, head", "num-server-rounds": 1}
    (row,) = metrics(run_app(tmp_path, {**DIAGNOSTICS, **keys, "fraction-train": 1.0}))
    replies = [values for values in sent if "train-loss" in values]
    assert len(replies) == len(row["participants"]) == 4
    sizes = [values["num-examples"] for values in replies]
    assert len(set(sizes)) > 1
    for layer in ("conv2", "head"):
        for name, key in (("angle", "fa-angle"), ("error", "fa-error")):
            values = [values[f"{key}/{layer}"] for values in replies]
            mean = sum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)
            assert row["diagnostics"][layer][name] == pytest.approx(mean, rel=1e-9)


def test_an_augmented_run_is_determined_by_its_seed(tmp_path: Path) -> None:
    """Whatever the order of the replies. It differs from the run without augmentation.

    The participants are the same, so that runs can be compared in pairs.
    """
    keys = {**SMALL, "augmentation": "crop-flip"}
    one, other = (run_app(tmp_path, keys, order=order) for order in (1, 2))
    assert metrics(one) == metrics(other)
    assert same_model(one, other)
    plain = run_app(tmp_path, SMALL)
    for row, before in zip(metrics(one), metrics(plain), strict=True):
        assert row["train-loss"] != before["train-loss"]
        assert row["participants"] == before["participants"]
    crop = run_app(tmp_path, {**keys, "augmentation": "crop"})
    assert not same_model(one, crop)


def test_a_neutral_method_is_fedavg_on_augmented_images(tmp_path: Path) -> None:
    """MOON with mu = 0: the same crops for the model and for the frozen ones."""
    keys = {**SMALL, "augmentation": "crop-flip", "fraction-train": 1.0}
    neutral = {"algorithm": "moon", **ALGORITHMS["moon"].fedavg_keys}
    fedavg, moon = (run_app(tmp_path, {**keys, **x}) for x in ({}, neutral))
    assert same_model(fedavg, moon)
