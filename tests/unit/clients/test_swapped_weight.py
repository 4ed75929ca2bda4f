"""The fast path of a convolution against the autograd function it stands for."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from clients.feedback import aligned_layer
from tests.unit.clients.cases import (
    conv,
    conv_input,
    every_conv,
    every_scaling,
    gradients,
    moved,
    quiet,
    same_bits,
)

pytestmark = quiet


@contextlib.contextmanager
def saved_by_others() -> Iterator[None]:
    """Someone else's hooks, as in checkpointing: the autograd function is used."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        yield


def autocast() -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def change(model: nn.Module) -> None:
    torch.manual_seed(1)
    moved(model)


@every_conv
@every_scaling
@pytest.mark.parametrize("batch", [None, 3], ids=["unbatched", "batch"])
def test_it_gives_the_bits_of_the_autograd_function(
    case: str, scaling: str, batch: int | None
) -> None:
    model, x = nn.Sequential(conv(case)), conv_input(case, batch)
    fast = gradients(model, x, ["0"], scaling=scaling, change=change)
    with saved_by_others():
        slow = gradients(model, x, ["0"], scaling=scaling, change=change)
    assert same_bits(fast, slow)
    assert not same_bits(fast, gradients(model, x, change=change))


@every_scaling
def test_it_gives_the_bits_of_the_autograd_function_under_autocast(
    scaling: str,
) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    with autocast():
        fast = gradients(model, x, ["0"], scaling=scaling, change=change)
        with saved_by_others():
            slow = gradients(model, x, ["0"], scaling=scaling, change=change)
    assert same_bits(fast, slow)


def function_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    apply = aligned_layer._apply

    def noted(function, *args) -> Tensor:
        calls.append(function.__name__)
        return apply(function, *args)

    monkeypatch.setattr(aligned_layer, "_apply", noted)
    return calls


def test_the_function_is_used_where_others_keep_the_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = function_calls(monkeypatch)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    gradients(model, x, ["0"])
    assert calls == []
    with saved_by_others():
        gradients(model, x, ["0"])
    assert calls == ["ConvFeedback"]


def test_the_function_is_used_where_the_node_keeps_no_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend with a convolution of its own: here, its output goes through a view."""
    calls = function_calls(monkeypatch)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    expected = gradients(model, x, ["0"], change=change)
    stock = nn.Conv2d._conv_forward

    def wrapped(self, *args) -> Tensor:
        outputs = stock(self, *args)
        return outputs.view_as(outputs)

    with feedback_alignment(model, ["0"]):
        monkeypatch.setattr(nn.Conv2d, "_conv_forward", wrapped)
        change(model)
        x.requires_grad_()
        y = model(x)
        y.sum().backward()
    assert calls == ["ConvFeedback"]
    assert torch.equal(y, expected[0])


def test_a_second_backward_pass_finds_the_feedback_again() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    x.requires_grad_()
    with feedback_alignment(model, ["0"]):
        change(model)
        loss = model(x).sum()
        (first,) = torch.autograd.grad(loss, x, retain_graph=True)
        (second,) = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)


def test_the_scale_is_that_of_the_forward_pass() -> None:
    """1x1, w = 2 on entry, 6 in the forward pass, 7 after it: the error is 2 * 3."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False))
    nn.init.constant_(model[0].weight, 2.0)
    x = torch.ones(1, 1, 1, 1, requires_grad=True)
    with feedback_alignment(model, ["0"]):
        nn.init.constant_(model[0].weight, 6.0)
        y = model(x)
        nn.init.constant_(model[0].weight, 7.0)
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0


def test_second_derivatives_are_refused_and_not_wrong() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    x.requires_grad_()
    with (
        feedback_alignment(model, ["0"]),
        pytest.raises(RuntimeError, match="no second derivatives"),
    ):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
