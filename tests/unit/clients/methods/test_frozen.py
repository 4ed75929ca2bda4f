"""Outputs of a frozen model: looked up, or computed for each batch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients.head import capture_features
from clients.methods.frozen import BATCH_SIZE, FrozenOutputs
from tests.unit.clients.cases import move_weights, same_bits
from tests.unit.clients.federated import bits, convnet, data, mlp, normed

every_net = pytest.mark.parametrize("net", [mlp, normed, convnet])
both_ways = pytest.mark.parametrize("augmented", [False, True])


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs)


def features(model: nn.Module, inputs: Tensor) -> Tensor:
    with capture_features(model) as captured:
        model(inputs)
    return captured[0]


def used(net: Any) -> nn.Module:
    """Build a model whose running statistics are not the initial ones."""
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
def test_the_outputs_are_the_models_before_later_training(
    net: Any, augmented: bool
) -> None:
    """In evaluation mode; neither moved weights nor statistics change them."""
    model, (inputs, _) = used(net), data(dtype=torch.float64)
    expected = by_hand(model, inputs)
    frozen = FrozenOutputs(model, logits, inputs, augmented=augmented)
    move_weights(model)
    model(10 * inputs)
    for batch in (torch.tensor([3, 0, 21]), torch.tensor([7]), torch.arange(22)):
        outputs = frozen.for_batch(batch, inputs[batch])
        assert not outputs.requires_grad
        torch.testing.assert_close(outputs, expected[batch], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(outputs, by_hand(model, inputs), rtol=1e-2)


def test_with_augmentation_the_inputs_decide_otherwise_the_indices() -> None:
    """To the bit where the inputs are the samples themselves."""
    model, (inputs, _) = mlp(), data()
    batch, others, everything = torch.tensor([4, 2]), torch.randn(2, 6), range(22)
    stored, computed = (
        FrozenOutputs(model, features, inputs, augmented=augmented)
        for augmented in (False, True)
    )
    indices = torch.tensor(everything)
    plain = stored.for_batch(indices, inputs)
    assert torch.equal(plain, computed.for_batch(indices, inputs))
    assert torch.equal(stored.for_batch(batch, others), plain[batch])
    new = computed.for_batch(batch, others)
    torch.testing.assert_close(new, features(model, others).detach())
    assert not torch.allclose(new, plain[batch])


@every_net
@both_ways
def test_the_model_is_not_changed(net: Any, augmented: bool) -> None:
    """Modes, buffers, gradients, flags, hooks; nor the random state."""
    model, (inputs, _) = used(net), data(dtype=torch.float64)
    model[2].eval()
    model.head.weight.requires_grad_(False)
    logits(model, inputs).sum().backward()

    def look() -> tuple[list[Any], list[Tensor]]:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return (
            [(m.training, len(m._forward_pre_hooks)) for m in model.modules()]
            + [p.requires_grad for p in model.parameters()],
            copy.deepcopy([*bits(model), *grads, torch.get_rng_state()]),
        )

    before = look()
    frozen = FrozenOutputs(model, features, inputs, augmented=augmented)
    frozen.for_batch(torch.tensor([1, 2]), inputs[1:3])
    after = look()
    assert after[0] == before[0]
    assert same_bits(after[1], before[1])
    with pytest.raises(RuntimeError):
        FrozenOutputs(model, logits, inputs[:, :5], augmented=augmented).for_batch(
            torch.arange(3), inputs[:, :5]
        )
    assert look()[0] == before[0]


def test_more_samples_than_a_batch_keep_their_order() -> None:
    model, inputs = mlp().double(), torch.randn(2 * BATCH_SIZE + 3, 6).double()
    frozen = FrozenOutputs(model, logits, inputs, augmented=False)
    batch = torch.tensor([2 * BATCH_SIZE + 2, BATCH_SIZE, BATCH_SIZE - 1, 0])
    expected = by_hand(model, inputs[batch])
    outputs = frozen.for_batch(batch, inputs[batch])
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-14)
