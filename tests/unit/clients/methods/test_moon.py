"""MOON: the contrast with the received and the previous local model."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import LocalTrainer, TrainSettings
from clients.methods.moon import MOONTrainer
from tests.unit.clients.cases import move_weights, same_bits
from tests.unit.clients.federated import (
    apart,
    bits,
    by_hand,
    convnet,
    data,
    extras,
    mlp,
    moon,
    normed,
    of,
    trained,
    weights,
)

SETTINGS = TrainSettings(learning_rate=0.1, batch_size=5, epochs=2, seed=2)


class Torchvision(nn.Module):
    """Dropout inside the head, as MobileNetV2 and EfficientNet (in place) have it."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        body = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 7)]
        self.features = nn.Sequential(*body)
        self.classifier = nn.Sequential(nn.Dropout(0.4, inplace), nn.Linear(7, 4))
        self.unused = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def split(model: Any) -> tuple[nn.Module, nn.Module]:
    if isinstance(model, Torchvision):
        return model.features, model.classifier
    return model[:-1], model[-1]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1) / (a.square().sum(1).sqrt() * b.square().sum(1).sqrt())


def contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of two similarities, the first being the right one."""
    logits = torch.stack([cosine(z, near), cosine(z, far)], 1) / temperature
    return cross_entropy(logits, torch.zeros(len(z), dtype=torch.int64))


def previous_of(model: nn.Module) -> dict[str, Tensor]:
    return extras("moon", model)["state"]


def model_state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(previous_of(model).items())


@pytest.mark.parametrize(
    "net",
    [normed, convnet, pytest.param(lambda: Torchvision(inplace=True), id="in-place")],
)
@pytest.mark.parametrize(("mu", "temperature"), [(0.7, 0.5), (5.0, 1.0)])
def test_a_round_minimises_the_whole_objective(
    net: Any, mu: float, temperature: float
) -> None:
    """The frozen models in evaluation mode; the features before the head's dropout."""
    model, (inputs, targets) = net().double(), data(dtype=torch.float64)
    received, previous = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    previous.load_state_dict(previous_of(model))

    def objective(network: nn.Module, batch: Tensor) -> Tensor:
        x, (body, head) = inputs[batch], split(network)
        z = body(x)
        loss = cross_entropy(head(z.clone()), targets[batch])
        with torch.no_grad():
            near, far = split(received)[0](x), split(previous)[0](x)
        return loss + mu * contrast(z, near, far, temperature)

    ours, _, _ = trained(
        MOONTrainer,
        model,
        SETTINGS,
        (inputs, targets),
        {"moon-mu": mu, "moon-temperature": temperature},
        state=previous_of(model),
    )
    theirs = by_hand(model, len(inputs), SETTINGS, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-11
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def test_two_equal_models_give_log_2_and_no_gradient() -> None:
    model, samples = mlp().double(), data(dtype=torch.float64)
    once = TrainSettings(batch_size=22, epochs=1)
    plain, expected, _ = trained(LocalTrainer, model, once, samples)
    ours, metrics, _ = trained(
        MOONTrainer, model, once, samples, moon(3.0), state=model.state_dict()
    )
    more = metrics["train-loss"] - expected["train-loss"]
    assert more == pytest.approx(3 * math.log(2), rel=1e-6)
    assert apart(weights(ours), weights(plain)) < 1e-14


@pytest.mark.parametrize("net", [normed, Torchvision])
def test_the_frozen_models_are_in_evaluation_mode(net: Any) -> None:
    """They change neither the model nor the stored state."""
    model, (inputs, targets) = net(), data()
    for _ in range(3):
        model(inputs)  # running statistics that are not the initial ones
    state = {k: v.requires_grad_(v.is_floating_point()) for k, v in model_state(model)}
    move_weights(model, 0.1)
    before, kept = copy.deepcopy(bits(model)), copy.deepcopy(state)
    trainer = MOONTrainer(model, SETTINGS, moon(1.0), state)
    trainer.begin(inputs, targets)
    assert same_bits(bits(model), before)
    assert same_bits(list(state.values()), list(kept.values()))
    previous = copy.deepcopy(model)
    previous.load_state_dict(state)
    with torch.no_grad():
        near, far = (split(m.eval())[0](inputs) for m in (model, previous))
    everything = torch.arange(len(inputs))
    for frozen, expected in (
        (trainer.global_features, near),
        (trainer.previous_features, far),
    ):
        features = frozen.for_batch(everything, inputs)
        assert torch.equal(features, expected)
        assert not features.requires_grad
    assert not torch.equal(near, far)
    model.train()
    trainer.fit(inputs, targets)
    assert all(v.grad is None for v in state.values())


@pytest.mark.parametrize("state", ["none", "some"])
def test_the_state_is_a_copy_of_the_model_as_sent(state: str) -> None:
    model, samples = normed(), data()
    kept = {} if state == "none" else {"state": previous_of(model)}
    ours, _, trainer = trained(MOONTrainer, model, SETTINGS, samples, moon(1.0), **kept)
    new = trainer.state()
    assert list(new) == list(ours.state_dict())
    assert same_bits(list(new.values()), bits(ours))
    assert new["norm.num_batches_tracked"] == 10
    assert not any(v.requires_grad for v in new.values())
    sent = copy.deepcopy(new)
    move_weights(ours)
    ours(samples[0])
    assert same_bits(list(new.values()), list(sent.values()))


def test_a_model_without_a_head_is_an_error_in_the_first_round_unless_mu_is_zero() -> (
    None
):
    model, samples = nn.Linear(6, 4), data()
    state = {k: v + 0.1 for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match="no body and head"):
        MOONTrainer(model, SETTINGS, moon(1.0)).fit(*samples)
    for kept in (None, state):
        trainer = MOONTrainer(copy.deepcopy(model), SETTINGS, moon(0.0), kept)
        trainer.fit(*samples)
        assert trainer.state() == {}


def test_features_that_are_all_zero_have_no_gradient() -> None:
    """They have no direction: the step is that of the plain loss.

    A tanh without inputs and biases has zero features; the previous model's bias gives
    it others.
    """
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 4))
    nn.init.zeros_(model[0][0].bias)
    samples = torch.zeros(4, 6), torch.arange(4)
    one = TrainSettings(learning_rate=0.1, batch_size=4, epochs=1)
    state = {**model.state_dict(), "0.0.bias": torch.ones(5)}
    contrasted, _, _ = trained(MOONTrainer, model, one, samples, moon(1.0), state=state)
    plain, _, _ = trained(LocalTrainer, model, one, samples, {})
    assert same_bits(bits(contrasted), bits(plain))
