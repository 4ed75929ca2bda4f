"""Outputs of a model that is trained afterwards: looked up, or computed each time."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients.head import capture_features
from clients.methods.frozen import BATCH_SIZE, FrozenOutputs
from tests.unit.clients.cases import moved, same_bits
from tests.unit.clients.methods.methods import bits, convnet, data, mlp, normed

every_net = pytest.mark.parametrize("net", [mlp, normed, convnet])
both_ways = pytest.mark.parametrize("augmented", [False, True])


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs)


def features(model: nn.Module, inputs: Tensor) -> Tensor:
    with capture_features(model) as seen:
        model(inputs)
    return seen[0]


def used(net: Any) -> nn.Module:
    """Give a model running statistics that are not the initial ones."""
    model = net().double()
    for _ in range(3):
        model(data(dtype=torch.float64)[0])
    return model


def by_hand(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs in evaluation mode, sample by sample."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return torch.cat([model(x[None]) for x in inputs])


@every_net
@both_ways
def test_the_outputs_are_the_models_in_evaluation_mode(
    net: Any, augmented: bool
) -> None:
    model, (inputs, _) = used(net), data(dtype=torch.float64)
    frozen = FrozenOutputs(model, logits, inputs, augmented=augmented)
    for batch in (torch.tensor([3, 0, 21]), torch.tensor([7]), torch.arange(22)):
        outputs = frozen.for_batch(batch, inputs[batch])
        assert not outputs.requires_grad
        torch.testing.assert_close(
            outputs, by_hand(model, inputs[batch]), rtol=1e-12, atol=1e-14
        )


@every_net
@pytest.mark.parametrize("output", [logits, features])
def test_both_ways_are_equal_for_the_same_images(net: Any, output: Any) -> None:
    """To the bit if all samples are one batch: then both compute the same."""
    model, (inputs, _) = used(net), data(dtype=torch.float64)
    known, new = (
        FrozenOutputs(model, output, inputs, augmented=augmented)
        for augmented in (False, True)
    )
    everything = torch.arange(len(inputs))
    outputs = known.for_batch(everything, inputs)
    assert torch.equal(outputs, new.for_batch(everything, inputs))
    assert len(outputs) == len(inputs)


def test_looked_up_is_by_place_and_computed_is_by_inputs() -> None:
    """An augmented sample is not the sample of its place."""
    model, (inputs, _) = mlp(), data()
    batch, others = torch.tensor([4, 2]), torch.randn(2, 6)
    known, new = (
        FrozenOutputs(model, logits, inputs, augmented=augmented)
        for augmented in (False, True)
    )
    with torch.no_grad():
        torch.testing.assert_close(known.for_batch(batch, others), model(inputs[batch]))
        assert torch.equal(new.for_batch(batch, others), model(others))
    assert not torch.equal(known.for_batch(batch, others), new.for_batch(batch, others))


@every_net
@both_ways
def test_training_afterwards_does_not_reach_them(net: Any, augmented: bool) -> None:
    """Weights and running statistics both move."""
    model, (inputs, _) = used(net), data(dtype=torch.float64)
    frozen = FrozenOutputs(model, logits, inputs, augmented=augmented)
    expected = by_hand(model, inputs)
    moved(model)
    model(10 * inputs)
    outputs = frozen.for_batch(torch.arange(22), inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(outputs, by_hand(model, inputs), rtol=1e-2)


@every_net
@both_ways
def test_the_model_is_left_as_it_is(net: Any, augmented: bool) -> None:
    """Modes one by one, buffers, gradients, flags, hooks; and the random state."""
    model, (inputs, _) = used(net), data(dtype=torch.float64)
    model[2].eval()
    model.head.weight.requires_grad_(False)
    logits(model, inputs).sum().backward()
    modes = [m.training for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    before = copy.deepcopy(bits(model))
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    random = torch.get_rng_state()
    frozen = FrozenOutputs(model, features, inputs, augmented=augmented)
    frozen.for_batch(torch.tensor([1, 2]), inputs[1:3])
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == flags
    assert same_bits(bits(model), before)
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert same_bits(after, grads)
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_pre_hooks for m in model.modules())


@both_ways
def test_modes_come_back_after_an_error(augmented: bool) -> None:
    model = normed()
    model.drop.eval()
    modes = [m.training for m in model.modules()]
    wrong = torch.randn(3, 5)
    with pytest.raises(RuntimeError):
        FrozenOutputs(model, logits, wrong, augmented=augmented).for_batch(
            torch.arange(3), wrong
        )
    assert [m.training for m in model.modules()] == modes


def test_more_samples_than_a_portion_keep_their_order() -> None:
    model, inputs = mlp().double(), torch.randn(2 * BATCH_SIZE + 3, 6).double()
    frozen = FrozenOutputs(model, logits, inputs, augmented=False)
    batch = torch.tensor([2 * BATCH_SIZE + 2, BATCH_SIZE, BATCH_SIZE - 1, 0])
    torch.testing.assert_close(
        frozen.for_batch(batch, inputs[batch]),
        by_hand(model, inputs[batch]),
        rtol=1e-12,
        atol=1e-14,
    )
