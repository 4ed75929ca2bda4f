"""What holds for every method, tested as soon as it is registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clients import TrainSettings, eligible_layers
from flfa_app.methods import ALGORITHMS
from flfa_app.models import MODELS, NORMS, build_model
from tests.federation import default_keys, metrics, run_app

EVERYONE = {"fraction-train": 1.0, "num-server-rounds": 3, "pictures": False}
NEUTRAL = [name for name, method in ALGORITHMS.items() if method.fedavg_keys]


def model_of(results: Path) -> dict[str, torch.Tensor]:
    return load_file(results / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    first, second = model_of(one), model_of(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_app(tmp_path_factory.mktemp("fedavg"), {**EVERYONE, "norm": "batch"})


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_keys_are_fedavg_bit_for_bit(
    name: str, fedavg: Path, tmp_path: Path
) -> None:
    neutral = ALGORITHMS[name].fedavg_keys
    keys = {**EVERYONE, "norm": "batch", "algorithm": name, "flfa": "none"}
    plain = run_app(tmp_path / "plain", {**keys, "algorithm": "fedavg"})
    assert_same(run_app(tmp_path, {**keys, **neutral}), plain)
    # And FLFA goes on top of it as on top of FedAvg.
    assert_same(run_app(tmp_path / "fa", {**keys, **neutral, "flfa": "lowest"}), fedavg)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedavg"])
def test_the_default_keys_are_not_neutral(
    name: str, fedavg: Path, tmp_path: Path
) -> None:
    run = run_app(tmp_path, {**EVERYONE, "norm": "batch", "algorithm": name})
    apart = [
        name
        for name, tensor in model_of(run).items()
        if not torch.equal(tensor, model_of(fedavg)[name])
    ]
    assert apart


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_local_step_a_round_makes_flfa_the_method_itself(
    name: str, tmp_path: Path
) -> None:
    """The first step of a round has B = w, whatever the method adds to it."""
    keys = {**EVERYONE, "algorithm": name, "batch-size": 10**6, "num-fa-layers": 3}
    plain, flfa = (run_app(tmp_path, {**keys, "flfa": x}) for x in ("none", "lowest"))
    assert [len(row["selected"]) for row in metrics(flfa)] == [0, 3, 3]
    assert_same(plain, flfa)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_more_local_steps_flfa_changes_the_method(
    name: str, tmp_path: Path
) -> None:
    keys = {**EVERYONE, "num-server-rounds": 2, "algorithm": name}
    plain, flfa = (run_app(tmp_path, {**keys, "flfa": x}) for x in ("none", "lowest"))
    assert [len(row["selected"]) for row in metrics(flfa)] == [0, 1]
    one, other = model_of(plain), model_of(flfa)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_does_not_depend_on_the_order_of_replies(
    name: str, tmp_path: Path
) -> None:
    """Client state included: it is kept by node, and every node has another id."""
    keys = {**EVERYONE, "algorithm": name, "flfa": "lowest"}
    one, other = (run_app(tmp_path, keys, order=order) for order in (1, 2))
    assert metrics(one) == metrics(other)
    assert_same(one, other)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_integer_buffers_keep_type_and_value(name: str, tmp_path: Path) -> None:
    equal = {"norm": "batch", "partitioner": "iid", "batch-size": 10**6}
    state = model_of(run_app(tmp_path, {**EVERYONE, **equal, "algorithm": name}))
    for key, tensor in state.items():
        if key.endswith("num_batches_tracked"):
            assert tensor.dtype == torch.int64
            assert tensor.item() == 3  # one step in each of three rounds
        if key.endswith("running_var"):
            assert (tensor > 0).all()


def test_fedacg_begins_as_fedprox(tmp_path: Path) -> None:
    """In round 1 the look-ahead is the model: FedProx with mu = beta."""
    one = {"num-server-rounds": 1, "flfa": "none"}
    acg = run_app(tmp_path, {**one, "algorithm": "fedacg", "fedacg-beta": 0.3})
    prox = run_app(tmp_path, {**one, "algorithm": "fedprox", "fedprox-mu": 0.3})
    assert_same(acg, prox)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bytes_on_the_wire(name: str, fedavg: Path, tmp_path: Path) -> None:
    """A few settings down, nothing up; SCAFFOLD sends its control variate down."""
    run = run_app(tmp_path, {**EVERYONE, "norm": "batch", "algorithm": name})
    parameters = sum(
        4 * t.numel() for k, t in model_of(run).items() if "running" not in k
    )
    for own, plain in zip(metrics(run), metrics(fedavg), strict=True):
        clients = len(own["participants"])
        names = len(" ".join(own["selected"] + plain["selected"]))
        down = (own["bytes-sent"] - plain["bytes-sent"]) / clients
        up = (own["bytes-received"] - plain["bytes-received"]) / clients
        model = parameters if name == "scaffold" else 0
        # NumPy's header of each array and the keys come on top of the numbers.
        assert 0.95 * model - names <= down <= 1.1 * model + 120 + names
        assert 0 <= up <= 32


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("model", ["cnn", "mobilenet_v2", "resnet18"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_trains_every_model(name: str, model: str, norm: str) -> None:
    """Two steps, twice, the second time with the state of the first, with FA."""
    assert model in MODELS
    method = ALGORITHMS[name]
    inputs, targets = torch.randn(6, 1, 16, 16), torch.arange(6) % 3
    net = build_model(model, channels=1, size=16, classes=4, norm=norm, seed=0)
    layer = eligible_layers(net)[1]
    settings = TrainSettings(batch_size=3, epochs=1, fa_layers=(layer,))
    config: dict[str, Any] = {
        "proximal-mu": default_keys()["fedprox-mu"],
        **default_keys(),
    }
    state: dict[str, torch.Tensor] = {}
    for _ in range(2):
        received = {k: torch.full_like(p, 1e-3) for k, p in net.named_parameters()}
        trainer = method.trainer(net, settings, config, state, received)
        reported = trainer.fit(inputs, targets)
        assert reported["steps"] == 2
        state = trainer.state()
        assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert "forward" not in vars(net.get_submodule(layer))
