"""A copy of a model for evaluation, in which BatchNorm costs nothing.

In evaluation BatchNorm is a factor and a shift for each channel. Behind a convolution
they become part of its weight and bias, and the maps are read and written once less.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

__all__ = ["FusedModel"]


class FusedModel:
    """Computes what a model computes in evaluation mode, up to rounding.

    Parameters
    ----------
    model : nn.Module
        The model. Its weights may change at any time; see :meth:`current`.
    example : Tensor
        A batch to run it on: which BatchNorm follows which convolution is seen there.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self._model = model
        self._pairs = _followed_by_norm(model, example)
        self._fused = copy.deepcopy(model) if self._pairs else model
        for conv, norm in self._pairs:
            layer: Any = self._fused.get_submodule(conv)
            layer.bias = nn.Parameter(torch.zeros_like(layer.weight[:, 0, 0, 0]))
            parent, _, name = norm.rpartition(".")
            setattr(self._fused.get_submodule(parent), name, nn.Identity())

    @torch.no_grad()
    def current(self) -> nn.Module:
        """Return a model that computes what the model does with its present weights."""
        if self._pairs:
            own = self._fused.state_dict()
            for name, tensor in self._model.state_dict().items():
                if name in own:
                    own[name].copy_(tensor)
        for conv, norm in self._pairs:
            layer: Any = self._model.get_submodule(conv)
            bn: Any = self._model.get_submodule(norm)
            fused: Any = self._fused.get_submodule(conv)
            weight, bias = fuse_conv_bn_weights(
                layer.weight,
                layer.bias,
                bn.running_mean,
                bn.running_var,
                bn.eps,
                bn.weight,
                bn.bias,
            )
            fused.weight.copy_(weight)
            fused.bias.copy_(bias)
        return self._fused.eval()


def _followed_by_norm(model: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """Name each convolution whose output is the input of a BatchNorm, and that one.

    Only where both are called once: a layer that is used twice cannot be changed.
    """
    made: dict[int, str] = {}
    calls: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    kept: list[Tensor] = []  # as long as it lives its id is its own

    def note(name: str, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[name] = calls.get(name, 0) + 1
        if isinstance(layer, nn.Conv2d):
            made[id(output)] = name
            kept.append(output)
        elif id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])], name))

    hooks = [
        layer.register_forward_hook(
            lambda layer, inputs, output, name=name: note(name, layer, inputs, output)
        )
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d)
    ]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return [(c, n) for c, n in pairs if calls[c] == calls[n] == 1]
