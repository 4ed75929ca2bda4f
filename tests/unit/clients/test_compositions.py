"""Feedback alignment in models as people build them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from clients import feedback_alignment
from tests.unit.clients.cases import every_scaling, moved, same_bits
from tests.unit.clients.nets import (
    USES,
    Net,
    both,
    grads,
    in_place,
    residual,
    through_a_sequence,
    twice,
    twice_conv,
)
from tests.unit.clients.reference import distance, reference_twin


@pytest.mark.parametrize("use", USES)
@every_scaling
def test_gradients_are_the_twins(use: Callable, scaling: str) -> None:
    model, x = Net(use).double(), torch.randn(4, 2, 6).double()
    ours, theirs = both(model, x, ["b", "c"], scaling)
    assert distance(ours, theirs) < 1e-12
    assert len(ours) > 4
    assert distance(ours[1:2], grads(model, x)[1:2]) > 1e-6


@pytest.mark.parametrize("use", USES)
def test_on_entry_gradients_are_those_of_backpropagation(use: Callable) -> None:
    model, x = Net(use), torch.randn(4, 2, 6)
    plain = grads(model, x)
    with feedback_alignment(model, ["a", "b", "c"]):
        assert same_bits(grads(model, x), plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize(
    "use", [twice, twice_conv, in_place, residual, through_a_sequence]
)
def test_a_checkpoint_changes_nothing(use: Callable, use_reentrant: bool) -> None:
    def saved(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(net.a(x))
        return checkpoint(lambda h: use(net, h), h, use_reentrant=use_reentrant)

    def kept(net: Any, x: Tensor) -> Tensor:
        return use(net, torch.tanh(net.a(x)))

    model, x = Net(kept).double(), torch.randn(4, 2, 6).double()
    with feedback_alignment(model, ["a", "b", "c"]):
        moved(model)
        without = grads(model, x)
        model.use = saved
        assert same_bits(grads(model, x), without)


@pytest.mark.parametrize("frozen", ["b.weight", "b.bias", "b.", "c.", ""])
def test_frozen_weights_let_the_error_through(frozen: str) -> None:
    model, x = Net(residual).double(), torch.randn(4, 2, 6).double()
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(frozen) or name.startswith("a."))
    ours, theirs = both(model, x, ["b", "c"])
    assert distance(ours, theirs) < 1e-12
    assert (model.b.weight.grad is None) == (frozen in ("b.weight", "b.", ""))


def test_tied_weights_collect_both_gradients() -> None:
    model = Net(lambda net, x: net.b(torch.tanh(net.a(x)))).double()
    model.b.weight = model.a.weight
    ours, theirs = both(model, torch.randn(4, 2, 6).double(), ["a", "b"])
    assert distance(ours, theirs) < 1e-12


def test_a_head_tied_to_the_embedding() -> None:
    model = nn.Sequential(nn.Embedding(7, 5), nn.Tanh(), nn.Linear(5, 7)).double()
    model[2].weight = model[0].weight
    ours, theirs = both(model, torch.tensor([[1, 2], [6, 2]]), ["2"])
    assert distance(ours, theirs) < 1e-12


def test_a_transformer_layer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double()
    names = ["linear1", "linear2"]
    ours, theirs = both(model, torch.randn(2, 3, 8).double(), names)
    assert distance(ours, theirs) < 1e-12


def test_a_model_that_is_a_layer() -> None:
    model = nn.Linear(3, 2).double()
    entry = model.weight.detach().clone()
    x = torch.randn(4, 3).double().requires_grad_()
    with feedback_alignment(model, [""], scaling="none"):
        moved(model)
        model(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, entry.sum(0).expand(4, 3), rtol=1e-14, atol=0)


def test_in_evaluation_mode_the_error_still_goes_through_b() -> None:
    model, x = Net(residual).double(), torch.randn(4, 2, 6).double()
    with feedback_alignment(model, ["b", "c"]):
        moved(model)
        training = grads(model, x)
        assert same_bits(grads(model.eval(), x), training)


def test_a_functional_call_uses_the_given_weight_and_the_models_feedback() -> None:
    model = Net(residual).double()
    x, other = torch.randn(4, 2, 6).double(), copy.deepcopy(model)
    twin = reference_twin(model, ["b", "c"])
    moved(other)
    with torch.no_grad():
        for p, q in zip(twin.parameters(), other.parameters(), strict=True):
            p.copy_(q)
    given = {name: p.detach().requires_grad_() for name, p in other.named_parameters()}
    with feedback_alignment(model, ["b", "c"]):
        y = functional_call(model, given, (x,))
    torch.manual_seed(9)
    y.backward(torch.randn_like(y))
    assert distance([y, *(p.grad for p in given.values())], grads(twin, x)) < 1e-12
    assert all(p.grad is None for p in model.parameters())


def test_gradients_accumulate_over_batches_and_repeated_passes() -> None:
    model, x = Net(residual).double(), torch.randn(4, 2, 6).double()
    with feedback_alignment(model, ["b", "c"]):
        moved(model)
        once = grads(model, x)[1:]
        model.zero_grad()
        y = model(x)
        torch.manual_seed(9)
        error = torch.randn_like(y)
        y.backward(error, retain_graph=True)
        y.backward(error)
    assert same_bits([p.grad for p in model.parameters()], [2 * g for g in once])


def test_hooks_of_an_aligned_layer_still_run() -> None:
    model, x, seen = Net(residual).double(), torch.randn(4, 2, 6).double(), {}
    model.b.register_forward_hook(lambda m, args, y: seen.update(output=y))
    model.b.register_full_backward_hook(lambda m, dx, dy: seen.update(dx=dx, dy=dy))
    with feedback_alignment(model, ["b"], scaling="none"):
        entry = model.b.weight.detach().clone()
        moved(model)
        grads(model, x)
    expected = torch.einsum("...o,oi->...i", seen["dy"][0], entry)
    torch.testing.assert_close(seen["dx"][0], expected, rtol=1e-12, atol=1e-14)


def test_second_derivatives_are_refused_and_not_wrong() -> None:
    model = Net(twice)
    x = torch.randn(4, 2, 6, requires_grad=True)
    with feedback_alignment(model, ["b"]):
        (dx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            dx.sum().backward()
