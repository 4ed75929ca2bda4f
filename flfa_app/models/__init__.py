"""Image classifiers, built by name.

They are plain torch modules, independent of Flower and of the training method. torch
and torchvision, which take seconds to import, are imported when a model is built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

# Module of each model's family. It has a builder with the name of the model, which
# takes the keywords channels, size, classes and norm, and `block_of_layer`.
MODELS: dict[str, str] = {
    "cnn": "cnn",
    "mobilenet_v2": "mobilenet",
    "mobilenet_v2_imagenet": "mobilenet",
    "resnet18": "resnet",
    "resnet50": "resnet",
}
NORMS = ("batch", "group")
# Two groups in every layer, whatever its width, as in FedACG's code.
GROUPS = 2


def build_model(
    name: str, *, channels: int, size: int, classes: int, norm: str, seed: int
) -> nn.Module:
    """Build a classifier whose initial weights depend on nothing but the arguments.

    It is on the CPU and in training mode. The images are ``size`` pixels high and wide.
    The caller's random state does not change.

    Raises
    ------
    ValueError
        If `name` is not in `MODELS`, or `norm` not in `NORMS`.
    """
    import torch

    builder = getattr(_family(name), name)
    # The weights are drawn on the CPU whatever the default device, so that a seed gives
    # the same weights on every machine. Only the CPU's generator is seeded:
    # torch.manual_seed would also seed the GPUs' generators, which
    # fork_rng(devices=[]) does not restore.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = builder(
            channels=channels, size=size, classes=classes, norm=norm
        )
        return model


def norm_layer(norm: str) -> Callable[[int], nn.Module]:
    """Return the function that makes the norm layer for a number of channels.

    It fits torchvision's ``norm_layer`` arguments.
    """
    from torch import nn

    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    # `partial` rather than a lambda: torchvision's ResNet stores the factory, and a
    # model that is sent to another process has to be picklable.
    return nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, GROUPS)


def block_of(model: str, layer: str) -> str:
    """Return the block of a layer, as in the paper's table of selected layers.

    MobileNetV2 has a stem, stages 1 to 7, a head (its last convolution) and a
    classifier; a ResNet has a stem, stages 1 to 4 and a classifier; in the small CNN
    every layer is a block. An unknown model or layer is a ValueError.
    """
    block: str | None = _family(model).block_of_layer(layer)
    if block is None:
        raise ValueError(f"{model} has no layer {layer!r}")
    return block


def _family(name: str) -> ModuleType:
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; allowed: {', '.join(MODELS)}")
    return import_module(f"{__name__}.{MODELS[name]}")
