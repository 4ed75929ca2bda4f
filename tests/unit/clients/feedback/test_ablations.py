"""Random and direct feedback, the ablations of the paper."""

from __future__ import annotations

import copy
import math
import zlib

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from clients.feedback.ablations import random_feedback
from tests.unit.clients.cases import through_pickle


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)
    ).double()


def gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(7, 4).double(), torch.arange(7) % 3


def test_random_feedback_is_equal_on_all_clients_with_the_norm_of_the_weight() -> None:
    weight = torch.randn(3, 2, 5)
    one = random_feedback("a", weight, 1)
    assert torch.equal(one, random_feedback("a", weight, 1))
    torch.testing.assert_close(one.norm(), weight.norm())
    for other in (random_feedback("b", weight, 1), random_feedback("a", weight, 2)):
        assert not torch.equal(one, other)
    # Over the rounds only its norm changes: another weight, the same direction.
    later = random_feedback("a", 3 * weight + 1, 1)
    torch.testing.assert_close(later / later.norm(), one / one.norm())


def test_random_feedback_in_a_network(batch: tuple[Tensor, Tensor]) -> None:
    """Layer 2 propagates d B, d its output's error, so layer 0 gets (d B * f') x."""
    model, (x, y) = network(), batch
    plain = gradients(model, x, y)
    with feedback_alignment(model, ["2"], feedback="random", seed=3):
        random = gradients(model, x, y)
    feedback = random_feedback("2", model[2].weight.detach(), 3)
    hidden = torch.tanh(model[0](x))
    out = model[2](hidden)
    error = torch.autograd.grad(
        nn.functional.cross_entropy(model[4](torch.tanh(out)), y), out
    )[0]
    below = (error @ feedback) * (1 - hidden.detach() ** 2)
    torch.testing.assert_close(random[0], below.T @ x)
    torch.testing.assert_close(random[1], below.sum(0))
    for got, want in zip(random[2:], plain[2:], strict=True):
        assert torch.equal(got, want)  # the layer itself and all after it


def test_random_feedback_follows_the_norm_of_the_weight(
    batch: tuple[Tensor, Tensor],
) -> None:
    """Twice the weight below a linear path: B doubles with it."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4)
    with feedback_alignment(model, ["1"], feedback="random"):
        model(x).sum().backward()
        once = model[0].weight.grad.clone()
        with torch.no_grad():
            model[1].weight.mul_(2)
        model.zero_grad()
        model(x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * once)


def direct(classes: int, size: int, name: str, seed: int) -> Tensor:
    """Return B of the specification: uniform [-1, 1) / sqrt(size)."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    uniform = torch.rand(classes, size, generator=generator)
    return ((2 * uniform - 1) / math.sqrt(size)).double()


@pytest.mark.parametrize("name", ["0", "2"])
def test_direct_feedback(name: str, batch: tuple[Tensor, Tensor]) -> None:
    """The layer's output gets e B, e = (softmax - one-hot) / batch at the logits."""
    model, (x, y) = network(), batch
    plain = gradients(model, x, y)
    with feedback_alignment(model, [name], feedback="dfa", seed=5):
        got = gradients(model, x, y)
    logits = model(x).detach()
    error = (logits.softmax(1) - nn.functional.one_hot(y, 3)) / len(y)
    layer = int(name)
    delta = error @ direct(3, model[layer].out_features, name, 5)
    inputs = model[:layer](x).detach() if layer else x
    torch.testing.assert_close(got[layer], delta.T @ inputs)
    torch.testing.assert_close(got[layer + 1], delta.sum(0))
    for own, want in zip(got[layer + 2 :], plain[layer + 2 :], strict=True):
        assert torch.equal(own, want)
    if name == "2":  # the layers before it backpropagate that error
        below = (delta @ model[2].weight) * (1 - inputs**2)
        torch.testing.assert_close(got[0], below.T @ x)


def test_direct_feedback_of_a_convolution() -> None:
    """Without an error there is no gradient; with the error 1 it is the sum of B."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).double()
    x = torch.randn(5, 1, 4, 4).double()
    with feedback_alignment(model, ["0"], feedback="dfa", seed=4):
        (0 * model(x)).sum().backward()
        assert not model[0].weight.grad.any()
        model(x).sum().backward()
    expected = 5 * direct(3, 8, "0", 4).sum(0).view(2, 4).sum(1)
    torch.testing.assert_close(model[0].bias.grad, expected)


def test_direct_feedback_on_the_last_layer_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"'4': it is the model's last"),
        feedback_alignment(network(), ["4"], feedback="dfa"),
    ):
        pass


class Pair(nn.Module):
    """A model that returns two tensors, of which direct feedback can use neither."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return hidden, self.second(hidden)


def test_direct_feedback_needs_one_output_if_a_layer_uses_it() -> None:
    model, x = Pair(), torch.ones(1, 2)
    with (
        feedback_alignment(model, ["first"], feedback="dfa"),
        pytest.raises(ValueError, match="one tensor, not tuple"),
    ):
        model(x)
    with feedback_alignment(model, [], feedback="dfa"):
        assert len(model(x)) == 2
        assert not model._forward_hooks
    # Nor does a model without any eligible layer.
    with feedback_alignment(nn.Tanh(), [], feedback="dfa"):
        pass


def test_direct_feedback_needs_logits_of_the_same_batch() -> None:
    x = torch.randn(3, 2)
    images = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4), nn.Unflatten(1, (2, 2)))
    summed = nn.Sequential(nn.Linear(2, 2), nn.Unflatten(0, (1, 3)), nn.Flatten())
    summed.append(nn.Linear(6, 2))
    for model in (images, summed):
        with (
            feedback_alignment(model, ["0"], feedback="dfa"),
            pytest.raises(ValueError, match=r"logits of shape \(batch, classes\)"),
        ):
            model(x).sum().backward()


@pytest.mark.parametrize("feedback", ["random", "dfa"])
def test_after_the_block_the_model_is_as_before(
    feedback: str, batch: tuple[Tensor, Tensor]
) -> None:
    model, (x, y) = network(), batch
    plain = gradients(model, x, y)
    keys = {name: set(vars(m)) for name, m in model.named_modules()}
    with feedback_alignment(model, ["2"], feedback=feedback):
        copies = [copy.deepcopy(model), through_pickle(model)]
    assert {name: set(vars(m)) for name, m in model.named_modules()} == keys
    assert not model._forward_hooks
    # A copy of a model with direct feedback keeps the hook that records the error.
    for net in (model, *(copies if feedback == "random" else ())):
        for got, want in zip(gradients(net, x, y), plain, strict=True):
            assert torch.equal(got, want)
