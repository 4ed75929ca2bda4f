"""The image classifiers, built by name.

They are plain `torch` modules: they know nothing of Flower nor of how they are trained.
"""

from importlib import import_module

import torch
from torch import nn

from flfa_app.models.norms import NORMS

__all__ = ["MODELS", "NORMS", "build_model"]

# The module with the builder of that name, which takes the keywords channels, size,
# classes and norm. Imported when it is needed: torchvision takes two seconds, in every
# process that serves clients.
MODELS: dict[str, str] = {
    "cnn": "cnn",
    "mobilenet_v2": "mobilenet",
    "mobilenet_v2_imagenet": "mobilenet",
    "resnet18": "resnet",
    "resnet50": "resnet",
}


def build_model(
    name: str, *, channels: int, size: int, classes: int, norm: str, seed: int
) -> nn.Module:
    """Build a classifier whose initial weights depend on nothing but the arguments.

    Parameters
    ----------
    name : str
        One of the keys of `MODELS`.
    channels : int
        Channels of the input images.
    size : int
        Height and width of the input images.
    classes : int
        Number of logits.
    norm : str
        Kind of normalisation layer, one of `NORMS`.
    seed : int
        Seed of the initial weights. The caller's random state is left as it was.

    Returns
    -------
    nn.Module
        The model, on the CPU and in training mode.

    Raises
    ------
    ValueError
        If `name` or `norm` is unknown.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; allowed: {', '.join(MODELS)}")
    # On the CPU whatever the default device, so that a seed means the same weights on
    # every machine; and its generator is the only one seeded: torch.manual_seed would
    # also seed the GPUs' generators, which fork_rng(devices=[]) does not restore.
    builder = getattr(import_module(f"{__name__}.{MODELS[name]}"), name)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = builder(
            channels=channels, size=size, classes=classes, norm=norm
        )
        return model
