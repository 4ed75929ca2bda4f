"""Find the layers that can use feedback alignment, and those where it has an effect."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from .._torch_compat import convolves_like
from ..depthwise import DepthwiseConv2d
from ..model_state import evaluation_mode

__all__ = ["effective_layers", "eligible_layers"]

# DepthwiseConv2d comes before its base class nn.Conv2d; both compute the same.
KINDS = (DepthwiseConv2d, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def eligible_layers(model: nn.Module) -> list[str]:
    """Name the layers of ``model`` that can use feedback alignment, in module order.

    These are its ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d`` layers, except for
    subclasses that compute their output in another way, lazy layers without a weight,
    complex weights, and the layers inside ``nn.MultiheadAttention``, which reads their
    weights but never calls them.
    """
    never_called = {
        id(child)
        for parent in model.modules()
        if isinstance(parent, nn.MultiheadAttention)
        for child in parent.modules()
    }
    return [
        name
        for name, layer in model.named_modules()
        if _runs_stock_forward(layer) and id(layer) not in never_called
    ]


def effective_layers(model: nn.Module, example: Tensor) -> list[str]:
    """Name the eligible layers on which feedback alignment has an effect.

    These are the layers whose input requires a gradient, so the first layer is not one
    of them. They are found by one forward pass in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        Any model; it is not changed.
    example : Tensor
        A batch for the forward pass.
    """
    effective: set[str] = set()

    def observe(name: str, inputs: tuple[Any, ...]) -> None:
        # Without grad mode the layer may be in a reentrant checkpoint, which runs it
        # again in the backward pass. A frozen layer is never selected, so counting it
        # does no harm.
        needs_grad = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        if needs_grad or not torch.is_grad_enabled():
            effective.add(name)

    names = eligible_layers(model)
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, kwargs, name=name: observe(name, (*args, *kwargs.values())),
            with_kwargs=True,
        )
        for name in names
    ]
    try:
        with (
            evaluation_mode(model),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            model(example.clone())  # autograd rejects a tensor made in inference mode
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name in names if name in effective]


def _runs_stock_forward(layer: nn.Module) -> bool:
    """Whether calling ``layer`` runs the unchanged code of one of ``KINDS``."""
    kind: Any = next((kind for kind in KINDS if isinstance(layer, kind)), None)
    if kind is None or isinstance(layer, LazyModuleMixin) or _is_complex(layer):
        return False
    if type(layer).forward is not kind.forward or not convolves_like(layer, kind):
        return False
    # A copy of an aligned layer has the class's own method as an instance attribute.
    instance_forward = vars(layer).get("forward")
    return instance_forward is None or instance_forward == MethodType(
        kind.forward, layer
    )


def _is_complex(layer: nn.Module) -> bool:
    return any(weight.is_complex() for weight in layer.parameters(recurse=False))
