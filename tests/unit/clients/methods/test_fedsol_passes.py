"""FedSOL: the head alone, dropout in both passes, and feedback alignment."""

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import LocalTrainer, TrainSettings, feedback_alignment
from clients.feedback.alignment import fixed_scales
from clients.methods.fedsol import FedSOLTrainer
from tests.unit.clients.cases import moved, same_bits
from tests.unit.clients.methods.methods import (
    SOLS,
    apart,
    bits,
    by_hand,
    data,
    fedsol,
    mlp,
    normed,
    trained,
    weights,
)
from tests.unit.clients.methods.sol import divergence, perturbation

SETTINGS = TrainSettings(learning_rate=0.1, batch_size=5, epochs=2, seed=2)
ONCE = TrainSettings(learning_rate=0.1, batch_size=22, epochs=1, seed=2)


def body_and(head: nn.Module, *last: nn.Module) -> Any:
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), *last)
    return nn.Sequential(OrderedDict(body=body, head=head))


@pytest.mark.parametrize(("part", "passes"), [("all", 2), ("head", 1)])
def test_how_often_the_body_is_run(part: str, passes: int) -> None:
    """5 batches, 2 epochs; the received logits are computed without training.

    The first step of the round is a plain one.
    """
    model, calls = mlp(), []
    trainer = FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", part))
    model.first.register_forward_hook(lambda m, *_: calls.append(m.training))
    trainer.fit(*data())
    assert calls.count(True) == 1 + passes * 9
    assert calls.count(False) == 1


@pytest.mark.parametrize("part", ["all", "head"])
def test_the_head_may_have_a_norm(part: str) -> None:
    """Its statistics, too, see one pass of each step: FedAvg's after the first."""
    model = body_and(nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 4)))
    samples = data()
    plain, _, _ = trained(LocalTrainer, model, ONCE, samples)
    config = fedsol(1.0, "fixed", part)
    ours, _, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
    assert same_bits(list(ours.buffers()), list(plain.buffers()))
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    assert ours.head[0].num_batches_tracked == 10


@pytest.mark.parametrize("part", ["all", "head"])
def test_the_head_may_drop_in_place(part: str) -> None:
    """EfficientNet's does. Adaptive: the first step is FedAvg's."""
    model = body_and(nn.Sequential(nn.Dropout(0.4, inplace=True), nn.Linear(7, 4)))
    samples = data()
    plain, _, _ = trained(LocalTrainer, model, ONCE, samples)
    config = fedsol(1.0, "adaptive", part)
    ours, _, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
    assert same_bits(bits(ours), bits(plain))
    trained(FedSOLTrainer, model, SETTINGS, samples, config)  # nor does torch object


def test_a_frozen_head_is_fedavg_if_it_alone_is_perturbed() -> None:
    model, samples = mlp(), data()
    model.head.requires_grad_(False)
    plain, _, _ = trained(LocalTrainer, model, SETTINGS, samples)
    config = fedsol(1.0, "fixed", "head")
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    assert same_bits(bits(ours), bits(plain))


class Masks(nn.Dropout):
    """Write down what is dropped in training."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(super().forward(torch.ones_like(x)))
            return x * self.seen[-1]
        return x


def masks_of(part: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return the masks in the body and in the head; every batch has 22 samples."""
    model = body_and(nn.Sequential(Masks(), nn.Linear(7, 4)), Masks())
    given = TrainSettings(batch_size=22, epochs=4)
    trainer = FedSOLTrainer(model, given, fedsol(1.0, "fixed", part))
    trainer.fit(*data())
    return model.body[-1].seen, model.head[0].seen


def test_both_passes_drop_the_same_and_each_step_something_else() -> None:
    for seen in masks_of("all"):
        assert len(seen) == 1 + 3 * 2
        for first, second in zip(seen[1::2], seen[2::2], strict=True):
            assert torch.equal(first, second)
        assert len({tuple(mask.flatten().tolist()) for mask in seen}) == 4


def test_the_heads_passes_drop_the_same() -> None:
    _, seen = masks_of("head")
    assert torch.equal(seen[-1], seen[-2])
    assert len({tuple(mask.flatten().tolist()) for mask in seen}) >= 4


def test_each_step_drops_something_else_in_the_body_of_a_plain_head() -> None:
    model = body_and(nn.Linear(7, 4), Masks())
    given = TrainSettings(batch_size=22, epochs=4)
    FedSOLTrainer(model, given, fedsol(1.0, "fixed", "head")).fit(*data())
    seen = model.body[-1].seen
    assert len({tuple(mask.flatten().tolist()) for mask in seen}) == len(seen) == 4


def test_the_heads_dropout_is_fedavgs() -> None:
    """Adaptive: the first step is FedAvg's."""
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(7, 4))
    model, samples = body_and(head, nn.Dropout(0.5)), data()
    plain, _, _ = trained(LocalTrainer, model, ONCE, samples)
    config = fedsol(1.0, "adaptive", "head")
    ours, _, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
    assert same_bits(bits(ours), bits(plain))


def test_held_scales_are_those_of_the_last_use() -> None:
    """The gradient of the input is that of the output times B |w| / |W|."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)).double()
    received = model[1].weight.detach().clone()
    x = torch.randn(5, 3, dtype=torch.float64)

    def hidden_gradient() -> Tensor:
        hidden = model[0](x).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model[1](hidden).sum(), hidden)
        return gradient

    def expected(weight: Tensor) -> Tensor:
        scale = weight.detach().norm() / received.norm()
        return torch.ones(5, 2, dtype=torch.float64) @ (scale * received)

    with feedback_alignment(model, ["1"]):
        moved(model)
        held = model[1].weight.detach().clone()
        torch.testing.assert_close(hidden_gradient(), expected(held))
        with fixed_scales(model):
            moved(model)
            torch.testing.assert_close(hidden_gradient(), expected(held))
            assert not torch.allclose(expected(held), expected(model[1].weight))
        torch.testing.assert_close(hidden_gradient(), expected(model[1].weight))
        with pytest.raises(ArithmeticError), fixed_scales(model):
            raise ArithmeticError
        moved(model)
        torch.testing.assert_close(hidden_gradient(), expected(model[1].weight))


def aligned(model: Any, x: Tensor, layer: str, feedback: Tensor) -> Tensor:
    """Run an ``mlp`` whose one layer sends the error back through ``feedback``."""
    for name, module in model.named_children():
        if name == layer:
            # The value is the layer's; the input's gradient goes through the second.
            x = module(x.detach()) + (x - x.detach()) @ feedback.T
        else:
            x = module(x)
    return x


@pytest.mark.parametrize(("variant", "part"), SOLS)
@pytest.mark.parametrize("layer", ["hidden", "head"])
def test_feedback_is_scaled_to_the_unperturbed_weight_in_both_passes(
    layer: str, variant: str, part: str
) -> None:
    model, (inputs, targets) = mlp().double(), data(dtype=torch.float64)
    frozen, rho = copy.deepcopy(model), 2.0
    on_entry = model.get_submodule(layer).weight.detach().clone()

    def slow(net: nn.Module, batch: Tensor) -> list[Tensor]:
        x, weight = inputs[batch], net.get_submodule(layer).weight.detach()
        feedback = weight.norm() / on_entry.norm() * on_entry
        loss = divergence(frozen(x).detach(), aligned(net, x, layer, feedback))
        added = perturbation(net, frozen, loss, rho, variant, part)
        second = copy.deepcopy(net)
        with torch.no_grad():
            for p, e in zip(second.parameters(), added, strict=True):
                p.add_(e)
        error = cross_entropy(aligned(second, x, layer, feedback), targets[batch])
        return list(torch.autograd.grad(error, list(second.parameters())))

    given = TrainSettings(learning_rate=0.1, batch_size=5, epochs=2, fa_layers=(layer,))
    config = fedsol(rho, variant, part)
    ours, _, _ = trained(FedSOLTrainer, model, given, (inputs, targets), config)
    theirs = by_hand(model, len(inputs), given, slow)
    assert apart(weights(ours), weights(theirs)) < 1e-10


def test_the_networks_of_these_tests_drop_and_normalise() -> None:
    """Otherwise the tests above would say little."""
    model, (inputs, _) = normed(), data()
    assert not torch.equal(model(inputs), model(inputs))
    assert not torch.equal(model(inputs), model.eval()(inputs))
