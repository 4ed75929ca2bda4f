"""A copy of a model for evaluation that merges BatchNorm into the convolutions.

In evaluation BatchNorm multiplies each channel by a factor and adds a shift. After a
convolution both can become part of its weight and bias, which saves reading and
writing the feature maps once more.
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
        A batch. One forward pass with it shows which BatchNorm follows which
        convolution.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self._model = model
        self._pairs = _conv_norm_pairs(model, example)
        self._fused = copy.deepcopy(model) if self._pairs else model
        for conv, norm in self._pairs:
            layer: Any = self._fused.get_submodule(conv)
            layer.bias = nn.Parameter(torch.zeros_like(layer.weight[:, 0, 0, 0]))
            parent, _, name = norm.rpartition(".")
            setattr(self._fused.get_submodule(parent), name, nn.Identity())

    @torch.no_grad()
    def current(self) -> nn.Module:
        """Return the fused model with the present weights, in evaluation mode."""
        if self._pairs:
            target = self._fused.state_dict()
            for name, tensor in self._model.state_dict().items():
                if name in target:
                    target[name].copy_(tensor)
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


def _conv_norm_pairs(model: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """Return the names of each convolution and the BatchNorm that follows it directly.

    Both must be called exactly once: a layer that is used twice cannot be changed.
    """
    conv_by_output: dict[int, str] = {}
    calls: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    outputs: list[Tensor] = []  # kept alive, so that no other tensor gets the same id

    def record_call(name: str, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[name] = calls.get(name, 0) + 1
        if isinstance(layer, nn.Conv2d):
            conv_by_output[id(output)] = name
            outputs.append(output)
        elif id(inputs[0]) in conv_by_output:
            pairs.append((conv_by_output[id(inputs[0])], name))

    hooks = [
        layer.register_forward_hook(
            lambda layer, inputs, output, name=name: record_call(
                name, layer, inputs, output
            )
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
