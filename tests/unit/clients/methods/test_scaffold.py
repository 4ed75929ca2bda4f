"""SCAFFOLD: control variates, and the step length with momentum."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import TrainSettings
from clients.methods.scaffold import ScaffoldTrainer, effective_steps
from tests.unit.clients.cases import same_bits
from tests.unit.clients.federated import (
    apart,
    by_hand,
    data,
    extras,
    mlp,
    normed,
    of,
    trained,
    weights,
)


def settings(momentum: float, **given: float) -> TrainSettings:
    values = {"learning_rate": 0.1, "batch_size": 5, "epochs": 2} | given
    return TrainSettings(momentum=momentum, **values)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 35])
def test_effective_steps_of_a_constant_gradient(steps: int, momentum: float) -> None:
    """torch's SGD, moved by a gradient of 1 at a learning rate of 1."""
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert effective_steps(steps, momentum) == pytest.approx(-weight.item(), rel=1e-10)


def test_effective_steps_by_hand() -> None:
    """Momentum 1/2: steps of 1, 3/2 and 7/4, together 17/4. None: one a step."""
    assert effective_steps(1, 0.5) == 1.0
    assert effective_steps(2, 0.5) == 2.5
    assert effective_steps(3, 0.5) == 4.25
    assert effective_steps(7, 0.0) == 7.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
def test_a_round_steps_along_the_corrected_gradient(
    momentum: float, clip_norm: float
) -> None:
    """The gradient of L(w) + <c - c_i, w>."""
    model, (inputs, targets) = mlp().double(), data(dtype=torch.float64)
    kept = extras("scaffold", model)
    own, c = kept["state"], kept["received"]

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        loss = cross_entropy(net(inputs[batch]), targets[batch])
        for name, p in net.named_parameters():
            loss = loss + ((c[name] - own[name]) * p).sum()
        return loss

    given = settings(momentum, weight_decay=0.01, clip_norm=clip_norm)
    ours, _, _ = trained(ScaffoldTrainer, model, given, (inputs, targets), **kept)
    theirs = by_hand(model, len(inputs), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-12


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_new_variate_and_the_step_length(momentum: float) -> None:
    """Option II: c_i - c + (W - w) / length; 22 samples in fives are 5 steps."""
    model, samples = normed().double(), data(dtype=torch.float64)
    kept = extras("scaffold", model)
    ours, metrics, trainer = trained(
        ScaffoldTrainer, model, settings(momentum), samples, **kept
    )
    assert metrics["steps"] == 10
    speed = length = 0.0
    for _ in range(10):
        speed = momentum * speed + 1.0
        length += 0.1 * speed
    assert metrics["step-length"] == pytest.approx(length, rel=1e-12)
    if momentum == 0:
        assert metrics["step-length"] == 0.1 * 10
    new = trainer.state()
    assert list(new) == [name for name, _ in model.named_parameters()]
    for name, variate in new.items():
        update = model.get_parameter(name) - ours.get_parameter(name)
        expected = kept["state"][name] - kept["received"][name] + update / length
        torch.testing.assert_close(variate, expected.detach(), rtol=1e-9, atol=1e-12)
        assert not variate.requires_grad


class Slope(ScaffoldTrainer):
    """A loss that is linear in the weights of a linear model."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 35])
def test_the_new_variate_is_a_constant_gradient_whatever_the_old_ones(
    steps: int, momentum: float
) -> None:
    """The update is -length (g + c - c_i); with the plain K, 7.49 times that.

    For y = W x + b summed over samples and outputs, dL/dW has the sum of x in every
    row and dL/db the number of samples.
    """
    model, samples = nn.Linear(6, 4).double(), data(dtype=torch.float64)
    given = settings(momentum, batch_size=22, epochs=steps, weight_decay=0.0)
    for kept in ({}, extras("scaffold", model)):
        _, _, trainer = trained(Slope, model, given, samples, **kept)
        rows = samples[0].sum(0).expand(4, 6)
        counts = torch.full((4,), 22.0, dtype=torch.float64)
        assert apart(list(trainer.state().values()), [rows, counts]) < 1e-11


@pytest.mark.parametrize("missing", ["state", "received"])
def test_a_variate_that_is_missing_is_zero(missing: str) -> None:
    model, samples = normed(), data()
    kept = extras("scaffold", model)
    zero = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    absent = {k: v for k, v in kept.items() if k != missing}
    results = [
        trained(ScaffoldTrainer, model, settings(0.9), samples, **given)
        for given in (kept | {missing: zero}, absent)
    ]
    for a, b in zip(*(weights(model) for model, _, _ in results), strict=True):
        assert torch.equal(a, b)
    states = [trainer.state() for _, _, trainer in results]
    assert all(torch.equal(states[0][name], states[1][name]) for name in zero)


@pytest.mark.parametrize("name", ["first.weight", "head.bias"])
def test_one_variate_that_is_not_zero_corrects_the_gradient(name: str) -> None:
    model, samples = mlp(), data()
    received = {name: torch.ones_like(model.get_parameter(name))}
    plain, _, _ = trained(ScaffoldTrainer, model, settings(0.9), samples)
    ours, _, _ = trained(
        ScaffoldTrainer, model, settings(0.9), samples, received=received
    )
    assert not torch.equal(ours.get_parameter(name), plain.get_parameter(name))


class Sent:
    """A tensor as it arrives: it must be moved to the model's dtype and device."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def to(self, like: Tensor) -> Tensor:
        assert isinstance(like, Tensor)  # which has a device and a dtype
        return self.tensor.to(like)


@pytest.mark.parametrize("wrap", [Tensor.double, Sent])
def test_variates_of_another_dtype_or_device_are_converted(wrap: Any) -> None:
    model, samples = mlp(), data()
    kept = extras("scaffold", model)
    other = {role: {k: wrap(t) for k, t in v.items()} for role, v in kept.items()}
    results = [
        trained(ScaffoldTrainer, model, settings(0.9), samples, **given)
        for given in (kept, other)
    ]
    states = [list(trainer.state().values()) for _, _, trainer in results]
    assert same_bits(*(weights(model) for model, _, _ in results))
    assert same_bits(*states)
    assert all(t.dtype == torch.float32 for t in states[1])
