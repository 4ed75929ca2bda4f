"""Local training: a plain loop to the bit, and with feedback alignment the twin's."""

import copy
from collections.abc import Callable
from itertools import chain

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients import LocalTrainer, TrainSettings
from tests.unit.clients.cases import same_bits
from tests.unit.clients.reference import distance, reference_twin

Data = tuple[Tensor, Tensor]


def network(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(3 * 16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def data(size: int = 11) -> Data:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(size, 1, 4, 4, generator=generator)
    return inputs, torch.randint(0, 3, (size,), generator=generator)


def values(model: nn.Module) -> list[Tensor]:
    return [t.clone() for t in model.state_dict().values()]


def by_hand(
    model: nn.Module,
    data: Data,
    settings: TrainSettings,
    clip: Callable[[list[Tensor]], None] = lambda grads: None,
) -> list[float]:
    """Train with SGD written out; return the mean loss of each epoch."""
    (inputs, targets), losses = data, []
    parameters = list(model.parameters())
    buffers = [torch.zeros_like(p) for p in parameters]
    order = torch.Generator()
    order.manual_seed(settings.seed)
    model.train()
    for _ in range(settings.epochs):
        permutation = torch.randperm(len(inputs), generator=order)
        total = 0.0
        for start in range(0, len(inputs), settings.batch_size):
            batch = permutation[start : start + settings.batch_size]
            loss = functional.cross_entropy(model(inputs[batch]), targets[batch])
            grads = list(torch.autograd.grad(loss, parameters))
            clip(grads)
            total += loss.item() * len(batch)
            with torch.no_grad():
                for p, grad, buffer in zip(parameters, grads, buffers, strict=True):
                    decayed = grad + settings.weight_decay * p
                    buffer.mul_(settings.momentum).add_(decayed)
                    p.sub_(settings.learning_rate * buffer)
        losses.append(total / len(inputs))
    return losses


def sgd(model: nn.Module, data: Data, settings: TrainSettings) -> None:
    """Train with a loop as in torch's tutorials."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(settings.seed)
        for _ in range(settings.epochs):
            for batch in torch.randperm(len(data[0]), generator=generator).split(
                settings.batch_size
            ):
                optimizer.zero_grad()
                outputs = model(data[0][batch])
                functional.cross_entropy(outputs, data[1][batch]).backward()
                optimizer.step()


def test_the_defaults_are_the_papers() -> None:
    settings = TrainSettings()
    assert settings.learning_rate == 0.01
    assert settings.momentum == 0.9
    assert settings.weight_decay == 0.001
    assert settings.batch_size == 64
    assert settings.epochs == 5
    assert settings.clip_norm == 0.0
    assert settings.fa_layers == ()
    assert (settings.feedback, settings.scaling) == ("global", "tensor")


@pytest.mark.parametrize("size", [1, 3, 4, 5, 11])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_it_is_a_plain_loop_to_the_bit(size: int, dropout: float) -> None:
    settings = TrainSettings(batch_size=4, epochs=3, seed=7)
    ours, theirs = network(dropout=dropout), network(dropout=dropout)
    metrics = LocalTrainer(ours, settings).fit(*data(size))
    sgd(theirs, data(size), settings)
    assert same_bits(values(ours), values(theirs))
    assert metrics["steps"] == 3 * -(-size // 4)


def test_it_is_the_loop_of_the_textbook_in_double_precision() -> None:
    settings = TrainSettings(batch_size=4, epochs=3, seed=7, learning_rate=0.1)
    ours, theirs = network().double(), network().double()
    inputs, targets = data()
    metrics = LocalTrainer(ours, settings).fit(inputs.double(), targets)
    losses = by_hand(theirs, (inputs.double(), targets), settings)
    assert distance(values(ours), values(theirs)) < 1e-12
    assert metrics["train-loss"] == pytest.approx(losses[-1], rel=1e-6)
    assert losses[-1] != pytest.approx(losses[0], rel=1e-3)


def test_the_defaults_are_what_it_trains_with() -> None:
    ours, theirs = network(), network()
    LocalTrainer(ours, TrainSettings()).fit(*data(70))
    sgd(theirs, data(70), TrainSettings())
    assert same_bits(values(ours), values(theirs))


@pytest.mark.parametrize("scaling", ["tensor", "channel", "none"])
def test_with_feedback_alignment_it_is_the_twins_loop(scaling: str) -> None:
    names = ("5", "7")
    settings = TrainSettings(
        learning_rate=0.1, batch_size=4, fa_layers=names, scaling=scaling
    )
    model, (inputs, targets) = network().double(), data()
    twin, plain = reference_twin(model, names, scaling), copy.deepcopy(model)
    LocalTrainer(model, settings).fit(inputs.double(), targets)
    for other in (twin, plain):
        by_hand(other, (inputs.double(), targets), settings)
    ours, theirs, other = (
        [p.detach() for p in m.parameters()] for m in (model, twin, plain)
    )
    assert distance(ours, theirs) < 1e-12
    assert distance(ours[:1], other[:1]) > 1e-6


def clip_to(limit: float) -> Callable[[list[Tensor]], None]:
    def clip(grads: list[Tensor]) -> None:
        # torch documents the 1e-6.
        norm = sum(float((g**2).sum()) for g in grads) ** 0.5 + 1e-6
        for g in grads:
            g.mul_(min(limit / norm, 1.0))

    return clip


@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_clip_norm_limits_the_norm_of_the_whole_gradient(limit: float) -> None:
    settings = TrainSettings(batch_size=4, epochs=2, clip_norm=limit)
    ours, theirs = network().double(), network().double()
    inputs, targets = data()
    LocalTrainer(ours, settings).fit(inputs.double(), targets)
    by_hand(theirs, (inputs.double(), targets), settings, clip_to(limit))
    assert distance(values(ours), values(theirs)) < 1e-12
    unclipped = network().double()
    by_hand(unclipped, (inputs.double(), targets), settings)
    apart = distance(values(ours), values(unclipped))
    assert apart < 1e-12 if limit > 1 else apart > 1e-4


def test_a_step_cannot_be_longer_than_learning_rate_times_clip_norm() -> None:
    model = network()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    LocalTrainer(
        model,
        TrainSettings(learning_rate=0.5, weight_decay=0, epochs=1, clip_norm=0.1),
    ).fit(1000 * data()[0], data()[1])
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (after - before).norm() == pytest.approx(0.5 * 0.1, rel=1e-4)


def test_frozen_weights_are_not_decayed() -> None:
    model = network()
    model[0].requires_grad_(False)
    before = values(model)
    settings = TrainSettings(weight_decay=0.5, fa_layers=("5",))
    LocalTrainer(model, settings).fit(*data())
    after = values(model)
    assert same_bits(after[:2], before[:2])
    assert not any(
        torch.equal(a, b) for a, b in zip(after[2:], before[2:], strict=True)
    )


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_seed_and_nothing_else_decides(dropout: float) -> None:
    results = []
    for seed, outer in ((1, 10), (1, 20), (2, 10)):
        model = network(dropout=dropout)
        torch.manual_seed(outer)
        state = torch.get_rng_state()
        settings = TrainSettings(batch_size=4, seed=seed, fa_layers=("5",))
        LocalTrainer(model, settings).fit(*data())
        assert torch.equal(torch.get_rng_state(), state)
        results.append(values(model))
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])


def test_batches_are_shuffled_anew_each_epoch() -> None:
    class Watching(LocalTrainer):
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            seen.append(targets.tolist())
            return super().compute_gradients(inputs, targets)

    seen: list[list[int]] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 11))
    inputs, targets = data()[0], torch.arange(11)
    Watching(model, TrainSettings(batch_size=4, epochs=2)).fit(inputs, targets)
    assert [len(batch) for batch in seen] == [4, 4, 3] * 2
    first, second = (list(chain(*seen[s])) for s in (slice(3), slice(3, 6)))
    assert sorted(first) == sorted(second) == list(range(11))
    assert first != second != list(range(11))


def test_the_model_is_trained_in_training_mode_whatever_it_was_in() -> None:
    models = [network(dropout=0.5).train(mode) for mode in (True, False)]
    for model in models:
        LocalTrainer(model, TrainSettings(epochs=1)).fit(*data())
    assert same_bits(values(models[0]), values(models[1]))
