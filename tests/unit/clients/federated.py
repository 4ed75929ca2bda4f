"""All methods, networks to train with them, and a slow SGD as reference."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clients import LocalTrainer, TrainSettings
from clients.methods.fedacg import FedACGTrainer
from clients.methods.feddyn import FedDynTrainer
from clients.methods.fedlc import FedLCTrainer
from clients.methods.fedprox import FedProxTrainer
from clients.methods.fedrs import FedRSTrainer
from clients.methods.fedsol import FedSOLTrainer
from clients.methods.moon import MOONTrainer
from clients.methods.scaffold import ScaffoldTrainer

CLASSES = 4


def fedsol(rho: float, variant: str, part: str) -> dict[str, Any]:
    return {"fedsol-rho": rho, "fedsol-variant": variant, "fedsol-part": part}


def moon(mu: float) -> dict[str, Any]:
    return {"moon-mu": mu, "moon-temperature": 0.5}


def fedrs(alpha: float, variant: str) -> dict[str, Any]:
    return {"fedrs-alpha": alpha, "fedrs-variant": variant}


SOLS = [(v, p) for v in ("fixed", "adaptive") for p in ("all", "head")]

# Of each method: the trainer, and a config with which it is not FedAvg.
ACTIVE: dict[str, tuple[type[LocalTrainer], dict[str, Any]]] = {
    "fedavg": (LocalTrainer, {}),
    "fedprox": (FedProxTrainer, {"proximal-mu": 0.5}),
    "fedacg": (FedACGTrainer, {"fedacg-beta": 0.5}),
    "feddyn": (FedDynTrainer, {"feddyn-alpha": 0.3}),
    "scaffold": (ScaffoldTrainer, {}),
    "moon": (MOONTrainer, moon(1.0)),
    "fedrs-hard": (FedRSTrainer, fedrs(0.5, "hard")),
    "fedrs-soft": (FedRSTrainer, fedrs(0.5, "soft")),
    "fedlc": (FedLCTrainer, {"fedlc-tau": 1.0}),
    **{f"fedsol-{v}-{p}": (FedSOLTrainer, fedsol(0.5, v, p)) for v, p in SOLS},
}


def mlp() -> nn.Sequential:
    """Neither BatchNorm nor dropout: a sample's output depends on it alone."""
    layers = {
        "first": nn.Linear(6, 8),
        "act": nn.Tanh(),
        "hidden": nn.Linear(8, 7),
        "act2": nn.Tanh(),
        "head": nn.Linear(7, CLASSES),
    }
    return nn.Sequential(OrderedDict(layers))


def normed() -> nn.Sequential:
    """Has BatchNorm1d, which refuses to train on one sample, and dropout."""
    layers = {
        "first": nn.Linear(6, 8),
        "norm": nn.BatchNorm1d(8),
        "act": nn.ReLU(),
        "drop": nn.Dropout(0.3),
        "hidden": nn.Linear(8, 7),
        "norm2": nn.BatchNorm1d(7),
        "act2": nn.Tanh(),
        "drop2": nn.Dropout(0.2),
        "head": nn.Linear(7, CLASSES),
    }
    return nn.Sequential(OrderedDict(layers))


def convnet() -> nn.Sequential:
    """Has convolutions: the six numbers of a sample become 2 x 3 pixels."""
    layers = {
        "image": nn.Unflatten(1, (1, 2, 3)),
        "first": nn.Conv2d(1, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(4),
        "act": nn.ReLU(inplace=True),
        "hidden": nn.Conv2d(4, 5, (1, 2)),
        "norm2": nn.BatchNorm2d(5),
        "act2": nn.ReLU(inplace=True),
        "drop": nn.Dropout2d(0.2),
        "flat": nn.Flatten(),
        "head": nn.Linear(20, CLASSES),
    }
    return nn.Sequential(OrderedDict(layers))


def without_dropout(model: nn.Module) -> Any:
    """Switch off the dropout of a network."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    return model


def picture_net(channels: int = 3, dropout: float = 0.0) -> nn.Sequential:
    """Takes images of 6 x 5; without dropout an output depends on its sample alone."""
    layers = {
        "first": nn.Conv2d(channels, 4, 3, padding=1),
        "act": nn.Tanh(),
        "pool": nn.AvgPool2d(2),
        "hidden": nn.Conv2d(4, 5, 2),
        "act2": nn.Tanh(),
        "drop": nn.Dropout(dropout),
        "flat": nn.Flatten(),
        "head": nn.Linear(10, CLASSES),
    }
    return nn.Sequential(OrderedDict(layers))


def pictures(
    size: int = 22, channels: int = 3, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Draw images of 6 x 5, of the classes of :func:`data`."""
    images = torch.randn(size, channels, 6, 5, dtype=dtype)
    return images, data(size)[1]


def data(size: int = 22, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Draw samples of classes 0 (half of them), 1 and 3: class 2 is missing."""
    targets = torch.tensor([0, 1, 0, 3])[torch.arange(size) % 4]
    return torch.randn(size, 6, dtype=dtype), targets


def extras(name: str, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return what a client has kept and received, for the methods that have that."""
    draw = torch.Generator().manual_seed(77)

    def like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            k: t.detach() + 0.1 * torch.randn(t.shape, generator=draw, dtype=t.dtype)
            for k, t in tensors.items()
        }

    zeros = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    if name == "feddyn":
        return {"state": like(zeros)}
    if name == "scaffold":
        return {"state": like(zeros), "received": like(zeros)}
    if name == "moon":
        parameters = like(dict(model.named_parameters()))
        return {"state": copy.deepcopy(model.state_dict()) | parameters}
    return {}


def trained(
    kind: type[LocalTrainer],
    model: nn.Module,
    settings: TrainSettings,
    samples: tuple[Tensor, Tensor],
    config: Mapping[str, Any] | None = None,
    **kept: Mapping[str, Tensor],
) -> tuple[nn.Module, dict[str, float], Any]:
    """Train a copy; return it, the metrics, and the trainer."""
    model = copy.deepcopy(model)
    trainer = kind(model, settings, config, **kept)
    return model, trainer.fit(*samples), trainer


def active(
    name: str,
    model: nn.Module,
    settings: TrainSettings,
    samples: tuple[Tensor, Tensor],
) -> tuple[nn.Module, dict[str, float], Any]:
    """Train a copy with a method of ``ACTIVE``, as a client that has taken part."""
    kind, config = ACTIVE[name]
    return trained(kind, model, settings, samples, config, **extras(name, model))


def bits(model: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, counters included."""
    return list(model.state_dict().values())


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the norm of the difference over the norm of the second."""
    assert len(ours) == len(theirs) > 0
    flat = [
        torch.cat([t.detach().double().flatten() for t in s]) for s in (ours, theirs)
    ]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def batches(size: int, settings: TrainSettings) -> Iterator[Tensor]:
    order = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.epochs):
        yield from torch.randperm(size, generator=order).split(settings.batch_size)


Gradient = Callable[[nn.Module, Tensor], Sequence[Tensor]]


def by_hand(
    model: nn.Module, size: int, settings: TrainSettings, gradient: Gradient
) -> nn.Module:
    """Train a copy by the textbook: clipping, weight decay, heavy ball, step.

    ``gradient(model, batch)`` returns the gradient of every parameter.
    """
    model = copy.deepcopy(model).train()
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    torch.manual_seed(settings.seed)
    for batch in batches(size, settings):
        gradients = list(gradient(model, batch))
        if settings.clip_norm > 0:
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            factor = min(1.0, settings.clip_norm / (float(norm) + 1e-6))
            gradients = [g * factor for g in gradients]
        with torch.no_grad():
            for i, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
                velocity[i] = settings.momentum * velocity[i]
                velocity[i] = velocity[i] + g + settings.weight_decay * p
                p.sub_(settings.learning_rate * velocity[i])
    return model


def of(objective: Callable[[nn.Module, Tensor], Tensor]) -> Gradient:
    """Return the gradient of an objective, by autograd."""
    return lambda model, batch: torch.autograd.grad(
        objective(model, batch), list(model.parameters())
    )
