"""Normalisation layers that a model can be built with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["NORMS", "norm_layer"]

NORMS = ("batch", "group")
# Two groups in every layer, whatever its width, as in FedACG's code.
GROUPS = 2


def norm_layer(norm: str) -> Callable[[int], nn.Module]:
    """Return the factory of a kind of normalisation layer.

    Parameters
    ----------
    norm : str
        One of `NORMS`.

    Returns
    -------
    Callable[[int], nn.Module]
        Makes the layer for a number of channels; fits torchvision's ``norm_layer``
        arguments.

    Raises
    ------
    ValueError
        If `norm` is not one of `NORMS`.
    """
    from torch import nn

    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    # `partial` rather than a lambda: torchvision's ResNet stores the factory, and a
    # model that is sent to another process has to be picklable.
    return nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, GROUPS)
