"""The normalisation layers a model can be built with."""

from collections.abc import Callable
from functools import partial

from torch import nn

# Two groups in every layer, whatever its width: the choice of the FedACG code base.
GROUPS = 2

# `partial` rather than a lambda: torchvision's ResNet keeps the factory as an
# attribute, and a model has to stay picklable to travel between processes.
_FACTORIES: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": partial(nn.GroupNorm, GROUPS),
}

NORMS = tuple(_FACTORIES)


def norm_layer(norm: str) -> Callable[[int], nn.Module]:
    """Return the factory of a kind of normalisation layer.

    Parameters
    ----------
    norm : str
        One of `NORMS`.

    Returns
    -------
    Callable[[int], nn.Module]
        Makes the layer for a given number of channels; fits torchvision's
        ``norm_layer`` arguments.

    Raises
    ------
    ValueError
        If `norm` is not one of `NORMS`.
    """
    if norm not in _FACTORIES:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    return _FACTORIES[norm]
