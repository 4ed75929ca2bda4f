"""At its neutral value every method is FedAvg, in every bit."""

from typing import Any

import pytest
import torch
from torch import nn

from clients import LocalTrainer, TrainSettings
from tests.unit.clients.cases import same_bits
from tests.unit.clients.methods.methods import (
    ACTIVE,
    SOLS,
    active,
    bits,
    convnet,
    data,
    extras,
    fedrs,
    fedsol,
    mlp,
    moon,
    normed,
    trained,
)

SETTINGS = TrainSettings(learning_rate=0.05, batch_size=4, epochs=3, seed=3)

NEUTRAL: dict[str, tuple[str, dict[str, Any]]] = {
    "fedprox": ("fedprox", {"proximal-mu": 0.0}),
    "fedacg": ("fedacg", {"fedacg-beta": 0.0}),
    "feddyn": ("feddyn", {"feddyn-alpha": 0.0}),
    "moon": ("moon", moon(0.0)),
    "fedrs-hard": ("fedrs-hard", fedrs(1.0, "hard")),
    "fedrs-soft": ("fedrs-soft", fedrs(1.0, "soft")),
    "fedlc": ("fedlc", {"fedlc-tau": 0.0}),
    **{f"fedsol-{v}-{p}": (f"fedsol-{v}-{p}", fedsol(0.0, v, p)) for v, p in SOLS},
}
every_net = pytest.mark.parametrize("net", [mlp, normed, convnet])


def fedavg(model: nn.Module, settings: TrainSettings = SETTINGS) -> Any:
    torch.manual_seed(5)
    return trained(LocalTrainer, model, settings, data())


@every_net
@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_value_is_fedavg(name: str, net: Any) -> None:
    """Also for a client that has a state (MOON's model, FedDyn's dual variable)."""
    model = net()
    theirs, expected, _ = fedavg(model)
    torch.manual_seed(5)
    method, config = NEUTRAL[name]
    kind, _ = ACTIVE[method]
    ours, metrics, _ = trained(
        kind, model, SETTINGS, data(), config, **extras(method, model)
    )
    assert same_bits(bits(ours), bits(theirs))
    assert metrics == expected


@every_net
@pytest.mark.parametrize("name", [name for name in ACTIVE if name != "fedavg"])
def test_another_value_is_not(name: str, net: Any) -> None:
    model = net()
    theirs, _, _ = fedavg(model)
    torch.manual_seed(5)
    ours, _, _ = active(name, model, SETTINGS, data())
    for key, weight in ours.named_parameters():
        assert not torch.equal(weight, theirs.get_parameter(key)), key


@every_net
def test_moon_without_state_is_fedavg(net: Any) -> None:
    model = net()
    theirs, expected, _ = fedavg(model)
    torch.manual_seed(5)
    kind, config = ACTIVE["moon"]
    ours, metrics, _ = trained(kind, model, SETTINGS, data(), config)
    assert same_bits(bits(ours), bits(theirs))
    assert metrics == expected


@every_net
@pytest.mark.parametrize("variates", ["none", "zero", "equal"])
def test_scaffold_without_a_difference_of_the_variates_is_fedavg(
    variates: str, net: Any
) -> None:
    model = net()
    theirs, expected, _ = fedavg(model)
    torch.manual_seed(5)
    own = extras("scaffold", model)["state"]
    if variates == "zero":
        own = {k: torch.zeros_like(v) for k, v in own.items()}
    kept = {} if variates == "none" else {"state": own, "received": own}
    kind, _ = ACTIVE["scaffold"]
    ours, metrics, _ = trained(kind, model, SETTINGS, data(), **kept)
    assert same_bits(bits(ours), bits(theirs))
    del metrics["step-length"]
    assert metrics == expected


@pytest.mark.parametrize("name", ["fedprox", "fedacg", "feddyn-first", "moon-first"])
def test_the_first_step_of_a_round_is_fedavgs(name: str) -> None:
    """There w = W, and a client that is new has no dual variable and no old model."""
    model = normed()
    once = TrainSettings(learning_rate=0.05, batch_size=22, epochs=1, seed=3)
    theirs, _, _ = fedavg(model, once)
    torch.manual_seed(5)
    kind, config = ACTIVE[name.removesuffix("-first")]
    ours, _, _ = trained(kind, model, once, data(), config)
    assert same_bits(bits(ours), bits(theirs))
    # And the second is not, where the client needs no state for it.
    if name != "moon-first":
        twice = TrainSettings(learning_rate=0.05, batch_size=22, epochs=2, seed=3)
        theirs, _, _ = fedavg(model, twice)
        torch.manual_seed(5)
        ours, _, _ = trained(kind, model, twice, data(), config)
        assert not torch.equal(ours.head.weight, theirs.head.weight)
