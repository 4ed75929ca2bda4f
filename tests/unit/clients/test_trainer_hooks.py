"""The hooks of the local trainer: their order, and what a method can do with them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import LocalTrainer, TrainSettings, eligible_layers
from tests.unit.clients.cases import same_bits


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def data(size: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4), torch.arange(size) % 3


class Recorder(LocalTrainer):
    """Write down each call, and what the model is like at that moment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[str] = []
        self.free: dict[str, list[str]] = {}
        self.weights: dict[str, list[Tensor]] = {}

    def note(self, name: str) -> None:
        self.calls.append(name)
        self.free[name] = eligible_layers(self.model)
        self.weights.setdefault(name, [p.clone() for p in self.model.parameters()])

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        self.note("begin")
        self.whole = (inputs, targets)
        self.mode_in_begin = self.model.training

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.note("loss")
        return super().loss(outputs, targets)

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.note("compute_gradients")
        assert all(p.grad is None for p in self.model.parameters())
        loss = super().compute_gradients(inputs, targets)
        assert not loss.requires_grad
        return loss

    def edit_gradients(self) -> None:
        self.note("edit_gradients")
        assert all(p.grad is not None for p in self.model.parameters())

    def state(self) -> dict[str, Tensor]:
        self.note("state")
        return {"kept": torch.ones(1)}


def test_the_order_of_the_calls() -> None:
    model, (inputs, targets) = network(), data()
    received = [p.clone() for p in model.parameters()]
    trainer = Recorder(model, TrainSettings(batch_size=3, epochs=2, fa_layers=("2",)))
    trainer.fit(inputs, targets)
    step = ["compute_gradients", "loss", "edit_gradients"]
    assert trainer.calls == ["begin", *step * 4]
    # The round begins with the received weights, all the data, and no feedback yet.
    assert same_bits(trainer.weights["begin"], received)
    assert trainer.whole[0] is inputs
    assert trainer.whole[1] is targets
    assert trainer.mode_in_begin
    assert trainer.free["begin"] == ["0", "2"]
    # Feedback alignment acts in the gradients, second passes of a method included.
    assert trainer.free["compute_gradients"] == trainer.free["loss"] == ["0"]
    # The edit comes before the step.
    assert same_bits(trainer.weights["edit_gradients"], received)
    assert eligible_layers(model) == ["0", "2"]


def test_config_and_state_are_copied_and_may_be_missing() -> None:
    config, state = {"proximal-mu": 0.1}, {"control": torch.ones(2)}
    trainer = LocalTrainer(network(), TrainSettings(), config, state)
    assert trainer.config == config
    assert trainer.received_state == state
    trainer.config["more"] = trainer.received_state["more"] = 1
    assert list(config) == ["proximal-mu"]
    assert list(state) == ["control"]
    bare = LocalTrainer(network(), TrainSettings())
    assert (bare.config, bare.received_state, bare.state()) == ({}, {}, {})


def test_the_default_hooks_change_nothing() -> None:
    settings, (inputs, targets) = TrainSettings(batch_size=3, fa_layers=("2",)), data()
    models = []
    for kind in (LocalTrainer, Recorder):
        torch.manual_seed(1)
        models.append(network())
        kind(models[-1], settings).fit(inputs, targets)
    assert same_bits(*([p.detach() for p in m.parameters()] for m in models))


class Proximal(LocalTrainer):
    """A loss without a gradient, and a pull towards the anchor at 2."""

    mu = 0.5

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.0 * outputs.sum()

    def edit_gradients(self) -> None:
        for p in self.model.parameters():
            assert p.grad is not None
            p.grad.add_(self.mu * (p.detach() - 2.0))


def pulled(steps: int, momentum: float) -> Tensor:
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(3.0)
    settings = TrainSettings(
        learning_rate=0.5, momentum=momentum, weight_decay=0.0, epochs=steps
    )
    Proximal(model, settings).fit(torch.ones(3, 1).double(), torch.zeros(3).double())
    return torch.stack([p.detach().flatten() for p in model.parameters()]) - 2.0


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_an_edit_of_the_gradients_alone_shrinks_the_distance(steps: int) -> None:
    """``w - W`` starts at 1 and loses the factor ``1 - lr * mu`` = 3/4 a step.

    3**k / 4**k beside 2 has fewer than 53 bits for k up to 10: no rounding at all.
    """
    expected = torch.full((2, 1), 0.75**steps, dtype=torch.float64)
    assert torch.equal(pulled(steps, momentum=0.0), expected)


def test_momentum_comes_after_the_edit() -> None:
    """By hand, with d = w - W: v = v / 2 + d / 2, then d = d - v / 2.

    d: 1, then v = 1/2 and d = 3/4, then v = 5/8 and d = 7/16.
    """
    assert torch.equal(
        pulled(2, momentum=0.5), torch.full((2, 1), 7 / 16, dtype=torch.float64)
    )


def test_the_edit_comes_before_clipping() -> None:
    class Exploding(LocalTrainer):
        def edit_gradients(self) -> None:
            for p in self.model.parameters():
                p.grad = torch.full_like(p, 1e6)

    model = nn.Linear(4, 3, bias=False)
    before = model.weight.detach().clone()
    settings = TrainSettings(learning_rate=1.0, weight_decay=0.0, epochs=1, clip_norm=2)
    Exploding(model, settings).fit(*data())
    # 12 equal entries of norm 2: each 2 / sqrt(12).
    step = torch.full((3, 4), 2 / 12**0.5)
    torch.testing.assert_close(before - model.weight, step, rtol=1e-5, atol=0)


def test_another_loss_is_the_loss_that_is_reported() -> None:
    class Constant(LocalTrainer):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return outputs.sum() * 0 + targets.double().mean()

    settings = TrainSettings(batch_size=2, epochs=1)
    targets = torch.tensor([1, 2, 3, 4, 10])
    metrics = Constant(network(), settings).fit(torch.randn(5, 4), targets)
    # The mean over samples, not over batches: the last batch has one sample.
    assert metrics == {"train-loss": 4.0, "steps": 3}


def test_only_the_last_epoch_is_reported() -> None:
    class Counting(LocalTrainer):
        steps = 0

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.steps += 1
            return outputs.sum() * 0 + self.steps

    settings = TrainSettings(batch_size=5, epochs=4)
    assert Counting(network(), settings).fit(*data())["train-loss"] == 4.0


def test_a_second_pass_in_compute_gradients() -> None:
    """Gradients of both passes are in the step; feedback alignment is in both."""

    class Twice(LocalTrainer):
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            super().compute_gradients(inputs, targets)
            return super().compute_gradients(inputs, targets)

    inputs, targets = data()
    options = {"weight_decay": 0.0, "momentum": 0.0, "epochs": 3, "fa_layers": ("2",)}
    ours, theirs = network(), network()
    theirs.load_state_dict(ours.state_dict())
    Twice(ours, TrainSettings(learning_rate=0.25, **options)).fit(inputs, targets)
    LocalTrainer(theirs, TrainSettings(learning_rate=0.5, **options)).fit(
        inputs, targets
    )
    # Doubling is exact, so twice the gradient is twice the learning rate to the bit.
    assert same_bits(*([p.detach() for p in m.parameters()] for m in (ours, theirs)))
