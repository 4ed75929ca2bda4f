"""Training under autocast: bfloat16 inside the model, full precision outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import (
    FedSOLTrainer,
    LocalTrainer,
    MOONTrainer,
    TrainSettings,
    feedback_alignment,
)

# Methods that run a model twice in a step, and what they need.
TWO_PASSES: list[Any] = [
    (MOONTrainer, {"moon-mu": 1.0, "moon-temperature": 0.5}),
    (
        FedSOLTrainer,
        {"fedsol-rho": 1.0, "fedsol-variant": "adaptive", "fedsol-part": "all"},
    ),
    (
        FedSOLTrainer,
        {"fedsol-rho": 1.0, "fedsol-variant": "fixed", "fedsol-part": "head"},
    ),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3),
        nn.Flatten(),
    )
    return nn.Sequential(body, nn.Linear(64, 3))


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(24, 1, 8, 8, generator=draw)
    return images, torch.randint(3, (24,), generator=draw)


def settings(precision: str, **more: Any) -> TrainSettings:
    return TrainSettings(batch_size=8, epochs=2, precision=precision, **more)


@pytest.mark.parametrize("layers", [(), ("0.3",), ("1",)])
def test_layers_compute_in_bfloat16_and_weights_stay(layers: tuple[str, ...]) -> None:
    net = model()
    seen = set()
    hooks = [
        layer.register_forward_hook(lambda *args: seen.add(args[-1].dtype))
        for layer in net.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    metrics = LocalTrainer(net, settings("bf16", fa_layers=layers)).fit(*data())
    for hook in hooks:
        hook.remove()
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert all(not torch.equal(p, before[n]) for n, p in net.named_parameters())
    assert metrics["train-loss"] > 0


@pytest.mark.parametrize("layers", [(), ("0.3",)])
def test_it_is_near_full_precision(layers: tuple[str, ...]) -> None:
    """One step: bfloat16 has 8 bits, and an update is a sum of products of two."""
    updates = []
    for precision in ("float32", "bf16"):
        net = model()
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        with feedback_alignment(net, layers):
            one_step = TrainSettings(batch_size=24, epochs=1, precision=precision)
            LocalTrainer(net, one_step).fit(*data())
        updates.append(
            torch.cat([p.detach().flatten() for p in net.parameters()]) - start
        )
    full, half = updates
    assert not torch.equal(full, half)
    assert torch.linalg.vector_norm(half - full) < 0.1 * torch.linalg.vector_norm(full)


def test_every_pass_has_the_weights_of_the_moment() -> None:
    """Autocast may keep casts; a step later they would be another model's."""
    net = model()
    head = net[1]
    assert isinstance(head, nn.Linear)
    seen = []

    def look(layer: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> None:
        # The same product in bfloat16, outside of autocast.
        with torch.autocast("cpu", enabled=False):
            weight, bias = head.weight.bfloat16(), head.bias.bfloat16()
            now = nn.functional.linear(inputs[0].bfloat16(), weight, bias)
        seen.append(torch.equal(now, outputs))

    head.register_forward_hook(look)
    LocalTrainer(net, settings("bf16")).fit(*data())
    assert seen == [True] * 6  # two epochs of three batches


@pytest.mark.parametrize(("trainer", "config"), [(LocalTrainer, {}), *TWO_PASSES])
def test_twenty_epochs_are_near_full_precision(
    trainer: type[LocalTrainer], config: dict[str, Any]
) -> None:
    """Weights that stood still would leave the loss where it was, at log 3 or more."""
    losses = {}
    for precision in ("float32", "bf16"):
        net = model()
        state = {name: tensor + 0.01 for name, tensor in net.state_dict().items()}
        twenty = TrainSettings(batch_size=8, epochs=20, precision=precision)
        fitted = trainer(net, twenty, config, state=state)
        losses[precision] = fitted.fit(*data())["train-loss"]
    assert losses["float32"] < 0.8
    assert losses["bf16"] == pytest.approx(losses["float32"], abs=0.1)


@pytest.mark.parametrize(("trainer", "config"), TWO_PASSES)
def test_methods_with_a_second_pass(
    trainer: type[LocalTrainer], config: dict[str, Any]
) -> None:
    net = model()
    state = {name: tensor + 0.01 for name, tensor in net.state_dict().items()}
    fitted = trainer(net, settings("bf16"), config, state=state)
    metrics = fitted.fit(*data())
    assert metrics["train-loss"] > 0
    assert {p.dtype for p in net.parameters()} == {torch.float32}


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"precision 'bf-16' is unknown; allowed"):
        TrainSettings(precision="bf-16")
