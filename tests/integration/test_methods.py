"""What holds for every method, tested as soon as it is registered."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clients import TrainSettings, eligible_layers
from flfa_app.methods import ALGORITHMS
from flfa_app.models import build_model
from tests.federation import metrics, run_app

KEYS = {
    "fraction-train": 1.0,
    "num-server-rounds": 3,
    "pictures": False,
    "norm": "batch",
}
# One step a round for every client: B is w in it, and BatchNorm counts it.
ONE_STEP = {"batch-size": 10**6, "partitioner": "iid", "num-fa-layers": 3}
NEUTRAL = [name for name, method in ALGORITHMS.items() if method.fedavg_keys]
EVERY = pytest.mark.parametrize("name", ALGORITHMS)

Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A function that runs a method with some keys, once for all tests."""

    @cache
    def run_once(name: str, keys: tuple[tuple[str, Any], ...], order: int) -> Path:
        folder = tmp_path_factory.mktemp(name)
        return run_app(folder, {**KEYS, "algorithm": name, **dict(keys)}, order=order)

    def run_method(name: str, order: int = 0, **keys: Any) -> Path:
        changed = tuple((k.replace("_", "-"), value) for k, value in keys.items())
        return run_once(name, changed, order)

    return run_method


def model_of(results: Path) -> dict[str, torch.Tensor]:
    return load_file(results / "model.safetensors")


def same_model(one: Path, other: Path) -> bool:
    first, second = model_of(one), model_of(other)
    assert first.keys() == second.keys()
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("rule", ["none", "lowest"])
def test_neutral_keys_are_fedavg_bit_for_bit(name: str, rule: str, run: Runs) -> None:
    neutral = run(name, flfa=rule, **ALGORITHMS[name].fedavg_keys)
    assert same_model(neutral, run("fedavg", flfa=rule))


@EVERY
def test_with_several_local_steps_flfa_changes_the_method(name: str, run: Runs) -> None:
    """The method with its default keys, which are not those of FedAvg."""
    flfa = run(name, flfa="lowest")
    assert [len(row["selected"]) for row in metrics(flfa)] == [0, 1, 1]
    assert not same_model(run(name, flfa="none"), flfa)
    assert same_model(flfa, run("fedavg", flfa="lowest")) == (name == "fedavg")


@EVERY
def test_with_one_local_step_flfa_is_the_method_itself(name: str, run: Runs) -> None:
    """The first step of a round has B = w, whatever the method adds to it.

    Integer buffers keep their type and their value: one step in each of three rounds.
    """
    flfa = run(name, flfa="lowest", **ONE_STEP)
    assert [len(row["selected"]) for row in metrics(flfa)] == [0, 3, 3]
    assert same_model(run(name, flfa="none", **ONE_STEP), flfa)
    for key, tensor in model_of(flfa).items():
        if key.endswith("num_batches_tracked"):
            assert (tensor.dtype, tensor.item()) == (torch.int64, 3)
        if key.endswith("running_var"):
            assert (tensor > 0).all()


@EVERY
def test_a_run_does_not_depend_on_the_order_of_replies(name: str, run: Runs) -> None:
    """Client state included: a node has another id and replies at another time."""
    one, other = (run(name, order=order, flfa="lowest") for order in (0, 2))
    assert metrics(one) == metrics(other)
    assert same_model(one, other)


@EVERY
def test_bytes_on_the_wire(name: str, run: Runs) -> None:
    """A few options down, nothing up; SCAFFOLD sends its control variate down."""
    own_run, plain_run = run(name, flfa="lowest"), run("fedavg", flfa="lowest")
    parameters = sum(
        4 * t.numel() for k, t in model_of(own_run).items() if "running" not in k
    )
    for own, plain in zip(metrics(own_run), metrics(plain_run), strict=True):
        clients = len(own["participants"])
        names = len(" ".join(own["selected"] + plain["selected"]))
        down = (own["bytes-sent"] - plain["bytes-sent"]) / clients
        up = (own["bytes-received"] - plain["bytes-received"]) / clients
        model = parameters if name == "scaffold" else 0
        # NumPy's header of each array and the keys are added to the numbers.
        assert 0.95 * model - names <= down <= 1.1 * model + 120 + names
        assert 0 <= up <= 32


def test_fedacg_begins_as_fedprox(run: Runs) -> None:
    """In round 1 the look-ahead is the model: FedProx with mu = beta."""
    one = {"num_server_rounds": 1, "flfa": "none"}
    acg = run("fedacg", **one, fedacg_beta=0.3)
    assert same_model(acg, run("fedprox", **one, fedprox_mu=0.3))


@pytest.mark.parametrize(
    ("model", "norm"), [("mobilenet_v2", "batch"), ("resnet18", "group")]
)
@EVERY
def test_every_method_trains_large_models(name: str, model: str, norm: str) -> None:
    """Two steps, twice, the second time with the state of the first, with FA."""
    method = ALGORITHMS[name]
    inputs, targets = torch.randn(6, 1, 16, 16), torch.arange(6) % 3
    net = build_model(model, channels=1, size=16, classes=4, norm=norm, seed=0)
    layer = eligible_layers(net)[1]
    settings = TrainSettings(batch_size=3, epochs=1, fa_layers=(layer,))
    config = {x.message_key: x.default for x in method.options if x.message_key}
    state: dict[str, torch.Tensor] = {}
    for _ in range(2):
        received = {k: torch.full_like(p, 1e-3) for k, p in net.named_parameters()}
        trainer = method.trainer(net, settings, config, state, received)
        reported = trainer.fit(inputs, targets)
        assert reported["steps"] == 2
        state = trainer.state()
        assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert "forward" not in vars(net.get_submodule(layer))
