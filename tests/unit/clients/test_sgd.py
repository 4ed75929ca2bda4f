"""Our SGD against torch's."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from clients.sgd import SGD
from tests.unit.clients.cases import same_bits

ROUND = """
import sys
import torch
from clients import LocalTrainer
from clients import TrainSettings
from torch import nn
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(),
                      nn.Linear(8, 2))
settings = TrainSettings(epochs=2, clip_norm=1.0, weight_decay=0.1, fa_layers=("3",))
LocalTrainer(model, settings).fit(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 0]))
assert "torch._dynamo" not in sys.modules
"""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.GroupNorm(1, 3),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.Linear(4, 1).double(),
    )


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("learning_rate", [0.1, 0.0])
def test_ten_steps_are_torchs(
    learning_rate: float, momentum: float, weight_decay: float, foreach: bool
) -> None:
    """Some parameters have no gradient at first, some never, some not every time."""
    ours, theirs = network(), network()
    theirs[0].bias.requires_grad_(False)
    ours[0].bias.requires_grad_(False)
    sgd = SGD(
        ours.parameters(),
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    torchs = torch.optim.SGD(
        theirs.parameters(),
        lr=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        foreach=foreach,
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
        kept = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
        sgd.step()
        torchs.step()
        assert same_bits(list(ours.parameters()), list(theirs.parameters()))
        after = [p.grad for p in ours.parameters() if p.grad is not None]
        assert same_bits(after, kept)
    moved = [not torch.equal(start[k], v) for k, v in ours.state_dict().items()]
    assert sum(moved) == (len(moved) - 1 if learning_rate else 0)


def test_the_first_velocity_is_the_gradient_itself() -> None:
    """By hand, with rate and momentum 1/2; and it is not the gradient's memory."""
    weight = nn.Parameter(torch.tensor([1.0, -0.0]))
    sgd = SGD([weight], learning_rate=0.5, momentum=0.5, weight_decay=0.0)
    weight.grad = torch.tensor([2.0, -0.0])
    sgd.step()
    assert weight.tolist() == [0.0, 0.0]
    weight.grad.mul_(1000)  # whoever keeps the gradient may do as he likes with it
    weight.grad = torch.tensor([2.0, 0.0])
    sgd.step()
    assert weight.tolist() == [0.0 - 0.5 * (0.5 * 2 + 2), 0.0]


def test_without_a_gradient_nothing_moves() -> None:
    weight = nn.Parameter(torch.ones(2))
    sgd = SGD([weight], learning_rate=1.0, momentum=0.9, weight_decay=0.1)
    sgd.step()
    assert weight.tolist() == [1.0, 1.0]


def test_a_round_does_not_import_torchs_compiler() -> None:
    subprocess.run([sys.executable, "-c", ROUND], check=True)
