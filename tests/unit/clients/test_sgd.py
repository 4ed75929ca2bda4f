"""Our SGD against torch's."""

import copy

import pytest
import torch
from torch import nn

from clients.sgd import SGD
from tests.unit.clients.cases import same_bits


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.GroupNorm(1, 3),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.Linear(4, 1).double(),
    )
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("learning_rate", "momentum", "weight_decay", "foreach"),
    [
        (0.1, 0.9, 0.01, True),
        (0.1, 0.9, 0.01, False),
        (0.1, 0.0, 0.0, True),
        (0.1, 1.0, 0.0, True),
        (0.1, 0.0, 1.0, False),
        (0.1, 1.0, 1.0, True),
        (0.0, 0.9, 0.01, True),
    ],
)
def test_ten_steps_are_torchs(
    learning_rate: float, momentum: float, weight_decay: float, foreach: bool
) -> None:
    """Some parameters have no gradient at first, some never, some not every time."""
    ours, theirs = network(), network()
    options = {"momentum": momentum, "weight_decay": weight_decay}
    sgd = SGD(ours.parameters(), learning_rate=learning_rate, **options)
    torchs = torch.optim.SGD(
        theirs.parameters(), lr=learning_rate, foreach=foreach, **options
    )
    start = copy.deepcopy(ours.state_dict())
    for step in range(10):
        sgd.zero_grad()
        torchs.zero_grad()
        for i, (one, other) in enumerate(
            zip(ours.parameters(), theirs.parameters(), strict=True)
        ):
            # The third from the fourth step on, the fifth in every other step.
            if one.requires_grad and (i != 2 or step > 2) and (i != 4 or step % 2):
                one.grad = torch.randn_like(one)
                other.grad = one.grad.clone()
        before = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
        sgd.step()
        torchs.step()
        assert same_bits(list(ours.parameters()), list(theirs.parameters()))
        after = [p.grad for p in ours.parameters() if p.grad is not None]
        assert same_bits(after, before)
    moved = [not torch.equal(start[k], v) for k, v in ours.state_dict().items()]
    assert sum(moved) == (len(moved) - 1 if learning_rate else 0)


def test_the_first_velocity_is_a_copy_of_the_gradient() -> None:
    """By hand, with rate and momentum 1/2."""
    weight = nn.Parameter(torch.tensor([1.0, -0.0]))
    sgd = SGD([weight], learning_rate=0.5, momentum=0.5, weight_decay=0.0)
    weight.grad = torch.tensor([2.0, -0.0])
    sgd.step()
    assert weight.tolist() == [0.0, 0.0]
    weight.grad.mul_(1000)  # somebody changes the gradient after the step
    weight.grad = torch.tensor([2.0, 0.0])
    sgd.step()
    assert weight.tolist() == [0.0 - 0.5 * (0.5 * 2 + 2), 0.0]


def test_without_decay_and_momentum_an_infinity_stays_one() -> None:
    """0 times infinity would be nan: neither term may be computed."""
    weight = nn.Parameter(torch.tensor([torch.inf, 1.0]))
    sgd = SGD([weight], learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    weight.grad = torch.tensor([1.0, torch.inf])
    sgd.step()
    weight.grad = torch.tensor([1.0, 1.0])
    sgd.step()
    assert weight.tolist() == [torch.inf, -torch.inf]


def test_without_a_gradient_nothing_moves() -> None:
    weight = nn.Parameter(torch.ones(2))
    sgd = SGD([weight], learning_rate=1.0, momentum=0.9, weight_decay=0.1)
    sgd.step()
    assert weight.tolist() == [1.0, 1.0]
