"""FedRS and FedLC: the logits before the softmax."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import LocalTrainer, TrainSettings
from clients.methods.fedlc import FedLCTrainer
from clients.methods.fedrs import FedRSTrainer
from tests.unit.clients.cases import same_bits
from tests.unit.clients.federated import (
    apart,
    by_hand,
    data,
    fedrs,
    mlp,
    of,
    trained,
    weights,
)

COUNTS = (16, 1, 0, 4)
LOCAL = torch.tensor([c for c, n in enumerate(COUNTS) for _ in range(n)])
SETTINGS = TrainSettings(learning_rate=0.1, batch_size=3, epochs=2)
# Class 2 is missing; class 0 is the largest with 16.
FACTORS = {
    "hard": lambda alpha: [1.0, 1.0, alpha, 1.0],
    "soft": lambda alpha: [alpha + (1 - alpha) * n / 16 for n in COUNTS],
}


def scaled(alpha: float, variant: str) -> LocalTrainer:
    trainer = FedRSTrainer(mlp(), SETTINGS, fedrs(alpha, variant))
    trainer.begin(torch.zeros(len(LOCAL), 6), LOCAL)
    return trainer


def calibrated(tau: float, local: Tensor = LOCAL) -> LocalTrainer:
    trainer = FedLCTrainer(mlp(), SETTINGS, {"fedlc-tau": tau})
    trainer.begin(torch.zeros(len(local), 6), local)
    return trainer


def naive(logits: list[list[float]], targets: list[int]) -> tuple[float, Any]:
    """Return the mean loss and softmax minus one-hot, number by number."""
    loss, rows = 0.0, []
    for row, target in zip(logits, targets, strict=True):
        total = sum(math.exp(z) for z in row)
        loss -= math.log(math.exp(row[target]) / total) / len(logits)
        rows.append(
            [
                (math.exp(z) / total - (c == target)) / len(logits)
                for c, z in enumerate(row)
            ]
        )
    return loss, torch.tensor(rows, dtype=torch.float64)


def batch() -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(6, 4, dtype=torch.float64)
    return logits.requires_grad_(), torch.tensor([0, 0, 3, 1, 0, 3])


@pytest.mark.parametrize("variant", FACTORS)
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5])
def test_fedrs_is_the_formula(alpha: float, variant: str) -> None:
    """dL/dz_c = s_c (p_c - 1[c = y])."""
    logits, targets = batch()
    loss = scaled(alpha, variant).loss(logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)
    s = FACTORS[variant](alpha)
    rows = [[f * z for f, z in zip(s, row, strict=True)] for row in logits.tolist()]
    expected, errors = naive(rows, targets.tolist())
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(
        gradient, errors * torch.tensor(s, dtype=torch.float64), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_fedrs_hard_with_all_classes_is_fedavg(alpha: float) -> None:
    model, (inputs, _) = mlp(), data()
    samples = inputs, torch.tensor([0, 1, 0, 3, 2])[torch.arange(len(inputs)) % 5]
    plain, expected, _ = trained(LocalTrainer, model, SETTINGS, samples)
    ours, metrics, _ = trained(
        FedRSTrainer, model, SETTINGS, samples, fedrs(alpha, "hard")
    )
    assert same_bits(weights(ours), weights(plain))
    assert metrics == expected
    # The soft variant scales the smaller classes too.
    soft, _, _ = trained(FedRSTrainer, model, SETTINGS, samples, fedrs(alpha, "soft"))
    assert not torch.equal(soft.head.weight, plain.head.weight)


@pytest.mark.parametrize("variant", FACTORS)
def test_fedrs_at_zero_does_not_train_the_missing_classs_row_of_the_head(
    variant: str,
) -> None:
    given = TrainSettings(learning_rate=0.1, weight_decay=0.0, batch_size=3, epochs=2)
    model = mlp()
    ours, _, _ = trained(FedRSTrainer, model, given, data(), fedrs(0.0, variant))
    assert torch.equal(ours.head.weight[2], model.head.weight[2])
    assert torch.equal(ours.head.bias[2], model.head.bias[2])
    assert (ours.head.weight[[0, 1, 3]] != model.head.weight[[0, 1, 3]]).all()


@pytest.mark.parametrize("tau", [0.1, 4.0])
def test_fedlc_is_the_formula(tau: float) -> None:
    logits, targets = batch()
    loss = calibrated(tau).loss(logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)
    shifts = [tau * n**-0.25 if n else math.inf for n in COUNTS]
    rows = [
        [z - s for s, z in zip(shifts, row, strict=True)] for row in logits.tolist()
    ]
    expected, errors = naive(rows, targets.tolist())
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, errors, rtol=1e-12, atol=1e-15)
    assert torch.equal(gradient[:, 2], torch.zeros(6, dtype=torch.float64))


def test_fedlc_is_finite_on_large_logits() -> None:
    logits = torch.tensor([[-300.0, 500.0, 1e4, 0.0]], requires_grad=True)
    loss = calibrated(1.0).loss(logits, torch.tensor([0]))
    loss.backward()
    # 500 - 1 against -300 - 1/2.
    assert loss.item() == pytest.approx(799.5, rel=1e-6)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_fedlc_with_equal_counts_is_cross_entropy() -> None:
    """A shift of all logits alike does not change a softmax."""
    logits, targets = batch()
    ours = calibrated(0.3, torch.arange(12) % 4).loss(logits, targets)
    assert ours.item() == pytest.approx(
        cross_entropy(logits, targets).item(), rel=1e-14
    )


def test_fedlc_trains_neither_a_missing_class_nor_a_single_one() -> None:
    """With one class the softmax is over that class: loss and gradient are zero."""
    given = TrainSettings(learning_rate=0.1, weight_decay=0.0, batch_size=3, epochs=2)
    model, (inputs, targets) = mlp(), data()
    config = {"fedlc-tau": 0.5}
    ours, _, _ = trained(FedLCTrainer, model, given, (inputs, targets), config)
    assert torch.equal(ours.head.weight[2], model.head.weight[2])
    assert torch.equal(ours.head.bias[2], model.head.bias[2])
    assert (ours.head.weight[[0, 1, 3]] != model.head.weight[[0, 1, 3]]).all()
    single = inputs, torch.full_like(targets, 3)
    ours, metrics, _ = trained(FedLCTrainer, model, given, single, config)
    assert same_bits(weights(ours), weights(model))
    assert metrics["train-loss"] == 0.0


@pytest.mark.parametrize("method", ["fedrs-hard", "fedrs-soft", "fedlc"])
def test_a_round_counts_all_local_data_not_the_batch(method: str) -> None:
    """Of 22 samples 11, 6, 0 and 5 are of the four classes; a batch has 3 samples."""
    model, (inputs, targets) = mlp().double(), data(dtype=torch.float64)
    counts = torch.tensor([11.0, 6.0, 0.0, 5.0], dtype=torch.float64)
    change = {
        "fedrs-hard": lambda z: z * torch.tensor([1.0, 1.0, 0.25, 1.0]).double(),
        "fedrs-soft": lambda z: z * (0.25 + 0.75 * counts / 11),
        "fedlc": lambda z: z - 0.7 / counts.sqrt().sqrt(),
    }[method]
    kind = FedLCTrainer if method == "fedlc" else FedRSTrainer
    config = {"fedlc-tau": 0.7} | fedrs(0.25, method.removeprefix("fedrs-"))

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(change(net(inputs[batch])), targets[batch])

    ours, _, _ = trained(kind, model, SETTINGS, (inputs, targets), config)
    theirs = by_hand(model, len(inputs), SETTINGS, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-12


def fedrs_counts(number: int, dtype: torch.dtype) -> float:
    """Return the soft factor of a class with ``number`` samples, 1,000 being most."""
    trainer = scaled(0.5, "soft")
    trainer.targets = torch.tensor([0] * 1000 + [1] * number)
    return float(trainer._factors(torch.zeros(1, 2, dtype=dtype))[1])


def fedlc_shift(number: int, dtype: torch.dtype) -> float:
    """Return the shift of the logit of a class with ``number`` samples."""
    trainer = calibrated(1.0, torch.zeros(number, dtype=torch.int64))
    trainer.loss(torch.zeros(1, 1, dtype=dtype), torch.zeros(1, dtype=torch.int64))
    return float(trainer.shift)


@pytest.mark.parametrize("counted", [fedrs_counts, fedlc_shift])
def test_counts_keep_their_precision_where_logits_have_little(counted: Any) -> None:
    """bfloat16 has 8 bits: its 257 is 256, and its 3^(-1/4) is 0.7617, not 0.7598."""
    for number in (3, 257):
        assert counted(number, torch.bfloat16) == counted(number, torch.float32)


@pytest.mark.parametrize("trainer", [scaled(0.5, "hard"), calibrated(1.0)])
def test_the_last_class_may_be_missing(trainer: Any) -> None:
    """The counts have as many classes as the logits."""
    trainer.begin(torch.zeros(2, 6), torch.tensor([0, 1]))
    logits, targets = batch()
    with_four = trainer.loss(logits[:1], targets[:1])
    assert torch.isfinite(with_four)
