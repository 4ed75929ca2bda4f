"""The ``forward`` of a layer with feedback alignment."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..depthwise import kept_weight
from .autograd import ConvFeedback, LinearFeedback, scaled

__all__ = ["FeedbackForward"]


class FeedbackForward:
    """The ``forward`` of one aligned layer; a copy of the layer gets a plain one."""

    def __init__(self, layer: nn.Module, feedback: Tensor, scaling: str) -> None:
        self.layer: Any = layer
        self.feedback = feedback
        self.norm_dims = {
            "tensor": tuple(range(self.feedback.dim())),
            "channel": tuple(range(1, self.feedback.dim())),
            "none": None,
        }[scaling]
        self.norm = self._norm(self.feedback)
        # Looked at once, so that no step has to.
        self.has_zeros = self.norm is not None and bool((self.norm == 0).any())
        self.scale = None if self.norm is None else torch.ones_like(self.norm)
        self.holds = False

    def __call__(self, input: Tensor) -> Tensor:
        """Compute the output; the error will go back through ``B``."""
        layer = self.layer
        if not (torch.is_grad_enabled() and input.requires_grad):
            # No error to propagate: the first layer, or an evaluation.
            plain: Tensor = type(layer).forward(layer, input)
            return plain
        weight = layer.weight  # read once: a parametrised weight is computed here
        if not self.holds:
            self.scale = self.scale_for(weight)
        if isinstance(layer, nn.Linear):
            return _linear(layer, input, weight, self.feedback, self.scale)
        if not _others_keep_tensors():
            outputs: Tensor = layer._conv_forward(input, weight, layer.bias)
            if _swap_saved_weight(outputs, self.feedback, self.scale):
                return outputs
        return _convolution(layer, input, weight, self.feedback, self.scale)

    def _norm(self, weight: Tensor) -> Tensor | None:
        if self.norm_dims is None:
            return None
        norm: Tensor = torch.linalg.vector_norm(
            weight.detach(),
            dim=self.norm_dims,
            keepdim=True,
            # Half precision would give the scale three digits.
            dtype=torch.promote_types(weight.dtype, torch.float32),
        )
        return norm

    def scale_for(self, weight: Tensor) -> Tensor | None:
        """Return ``|w| / |W|``, exactly 1 while the weight is the one on entry."""
        norm = self._norm(weight)
        if norm is None or self.norm is None:
            return None
        scale = norm / self.norm
        return torch.where(self.norm > 0, scale, 1.0) if self.has_zeros else scale

    def __reduce__(self) -> tuple[Any, ...]:
        # For copy and pickle: the layer they make is not in this block.
        return _plain_forward, (self.layer,)


def _plain_forward(layer: nn.Module) -> Any:
    return MethodType(type(layer).forward, layer)


def _swap_saved_weight(outputs: Tensor, feedback: Tensor, scale: Tensor | None) -> bool:
    """Let the layer's own backward pass find ``B`` where it has kept the weight.

    It needs the weight for nothing but the input's gradient. This is three times as
    cheap as an autograd function in Python; where there is no such place, return False.
    """
    node: Any = outputs.grad_fn
    if outputs.dim() == feedback.dim() - 1:  # one sample: a batch of one, squeezed
        node = node.next_functions[0][0]
    kept = getattr(node, "_raw_saved_weight", None)
    if kept is None:
        kept = kept_weight(node)
    if kept is None:
        return False

    def swapped(dtype: torch.dtype) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("feedback alignment has no second derivatives")
        return scaled(feedback, scale, dtype)

    kept.register_hooks(lambda weight: weight.dtype, swapped)
    return True


def _others_keep_tensors() -> bool:
    """Whether checkpointing or the like keeps what a backward pass needs."""
    autograd: Any = torch._C._autograd
    hooks = getattr(autograd, "_top_saved_tensors_default_hooks", None)
    return hooks is None or hooks(False) is not None


def _as_autocast_would(tensor: Tensor) -> Tensor:
    """Cast as autocast is about to, so that input and gradient have one precision."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device) and tensor.dtype is not torch.float64:
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


def _linear(
    layer: Any, inputs: Tensor, weight: Tensor, feedback: Tensor, scale: Tensor | None
) -> Tensor:
    inputs = _as_autocast_would(inputs)
    outputs = functional.linear(inputs.detach(), weight, layer.bias)
    return _apply(LinearFeedback, inputs, outputs, feedback, scale)


def _convolution(
    layer: Any, inputs: Tensor, weight: Tensor, feedback: Tensor, scale: Tensor | None
) -> Tensor:
    inputs, weight = _as_autocast_would(inputs), _as_autocast_would(weight)
    bias = None if layer.bias is None else _as_autocast_would(layer.bias)
    unbatched = inputs.dim() == weight.dim() - 1
    if unbatched:
        inputs = inputs.unsqueeze(0)
    inputs, padding = _pad(layer, inputs)
    geometry = (layer.stride, padding, layer.dilation, layer.groups)
    outputs = _apply(ConvFeedback, inputs, weight, bias, feedback, scale, *geometry)
    return outputs.squeeze(0) if unbatched else outputs


def _pad(layer: Any, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Pad as far as the convolution cannot; autograd differentiates this part."""
    # (before, after) for each axis, the last axis first.
    margins = layer._reversed_padding_repeated_twice
    before, after = margins[0::2], margins[1::2]
    if layer.padding_mode != "zeros":
        padded = functional.pad(inputs, margins, layer.padding_mode)
        return padded, (0,) * len(before)
    if not isinstance(layer.padding, str):
        return inputs, layer.padding
    if before != after:
        uneven = [m for b, a in zip(before, after, strict=True) for m in (0, a - b)]
        inputs = functional.pad(inputs, uneven)
    return inputs, tuple(reversed(before))


def _apply(function: Any, *args: Any) -> Tensor:
    outputs: Tensor = function.apply(*args)
    return outputs
