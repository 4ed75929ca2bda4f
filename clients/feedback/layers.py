"""Which layers of a model can use feedback alignment, and where it has an effect."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..depthwise import DepthwiseConv2d

__all__ = ["effective_layers", "eligible_layers"]

# Before nn.Conv2d, which it is too: what it computes is the same.
KINDS = (DepthwiseConv2d, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def eligible_layers(model: nn.Module) -> list[str]:
    """Name the layers of ``model`` that can use feedback alignment, in module order.

    These are its ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d`` layers. Left out are
    subclasses that compute their output otherwise, lazy layers without a weight yet,
    complex weights, and the layers inside ``nn.MultiheadAttention``, which uses their
    weights but never calls them.
    """
    called_by_no_one = {
        id(child)
        for parent in model.modules()
        if isinstance(parent, nn.MultiheadAttention)
        for child in parent.modules()
    }
    return [
        name
        for name, layer in model.named_modules()
        if _runs_the_stock_forward(layer) and id(layer) not in called_by_no_one
    ]


def effective_layers(model: nn.Module, example: Tensor) -> list[str]:
    """Name the eligible layers on which feedback alignment has an effect.

    These are the ones called with an input that carries a gradient, which the first
    layer's does not. Found by one forward pass in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        Any model; left as it was.
    example : Tensor
        A batch to run it on.
    """
    effective: set[str] = set()

    def note(name: str, inputs: tuple[Any, ...]) -> None:
        # Without grad mode the layer may be in a reentrant checkpoint, which runs it
        # again in the backward pass; if it is frozen instead, no rule will choose it.
        carries = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        if carries or not torch.is_grad_enabled():
            effective.add(name)

    names = eligible_layers(model)
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, kwargs, name=name: note(name, (*args, *kwargs.values())),
            with_kwargs=True,
        )
        for name in names
    ]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            model(example.clone())  # a tensor made in inference mode may not be used
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return [name for name in names if name in effective]


def _runs_the_stock_forward(layer: nn.Module) -> bool:
    """Whether calling ``layer`` runs the code of one of the kinds on it."""
    kind: Any = next((kind for kind in KINDS if isinstance(layer, kind)), None)
    if isinstance(layer, LazyModuleMixin) or _is_complex(layer):
        return False
    if kind is None or any(
        getattr(type(layer), method, None) is not getattr(kind, method, None)
        for method in ("forward", "_conv_forward")
    ):
        return False
    # A bound copy of the class's own method is what a copied aligned layer carries.
    own = vars(layer).get("forward")
    return own is None or own == MethodType(kind.forward, layer)


def _is_complex(layer: nn.Module) -> bool:
    return any(weight.is_complex() for weight in layer.parameters(recurse=False))
