"""The ``forward`` of a layer with feedback alignment."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._torch_compat import convolve, saved_tensor_hooks_active, saved_weight
from ..depthwise import saved_depthwise_weight
from .autograd import ConvFeedback, LinearFeedback, scaled

__all__ = ["FeedbackForward"]


class FeedbackForward:
    """The ``forward`` of one aligned layer; a copy of the layer gets the plain one.

    Parameters
    ----------
    layer : nn.Module
        An eligible layer.
    feedback : Tensor
        ``B`` before scaling, in the shape of the layer's weight.
    scaling : str
        As in :func:`~.alignment.feedback_alignment`.

    Attributes
    ----------
    scale : Tensor or None
        The factor of the last forward pass; None without scaling.
    scale_is_fixed : bool
        Whether forward passes use ``scale`` as it is, whatever the weight.
    """

    def __init__(self, layer: nn.Module, feedback: Tensor, scaling: str) -> None:
        self.layer: Any = layer
        self.feedback = feedback
        self.norm_dims = {
            "tensor": tuple(range(self.feedback.dim())),
            "channel": tuple(range(1, self.feedback.dim())),
            "none": None,
        }[scaling]
        self.norm = self._norm(self.feedback)
        # Read once here, because reading a tensor in every step would make a GPU wait.
        self.has_zeros = self.norm is not None and bool((self.norm == 0).any())
        self.scale = None if self.norm is None else torch.ones_like(self.norm)
        self.scale_is_fixed = False

    def __call__(self, input: Tensor) -> Tensor:
        """Compute the output; in the backward pass the error goes through ``B``."""
        layer = self.layer
        if not (torch.is_grad_enabled() and input.requires_grad):
            # No error to propagate: the first layer, or an evaluation.
            plain: Tensor = type(layer).forward(layer, input)
            return plain
        weight = layer.weight  # read once: a parametrised weight is computed here
        if not self.scale_is_fixed:
            self.scale = self.scale_for(weight)
        if isinstance(layer, nn.Linear):
            return _linear(layer, input, weight, self.feedback, self.scale)
        if not saved_tensor_hooks_active():
            outputs = convolve(layer, input, weight, layer.bias)
            if outputs is not None and _replace_saved_weight(
                outputs, self.feedback, self.scale
            ):
                return outputs
        return _convolution(layer, input, weight, self.feedback, self.scale)

    def scale_for(self, weight: Tensor) -> Tensor | None:
        """Return ``|w| / |B|``, which is exactly 1 while the weight is ``B``."""
        norm = self._norm(weight)
        if norm is None or self.norm is None:
            return None
        scale = norm / self.norm
        return torch.where(self.norm > 0, scale, 1.0) if self.has_zeros else scale

    def _norm(self, weight: Tensor) -> Tensor | None:
        if self.norm_dims is None:
            return None
        norm: Tensor = torch.linalg.vector_norm(
            weight.detach(),
            dim=self.norm_dims,
            keepdim=True,
            # In half precision the scale would have only three digits.
            dtype=torch.promote_types(weight.dtype, torch.float32),
        )
        return norm

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or a pickle of the layer is not aligned.
        return _plain_forward, (self.layer,)


def _plain_forward(layer: nn.Module) -> Any:
    return MethodType(type(layer).forward, layer)


def _replace_saved_weight(
    outputs: Tensor, feedback: Tensor, scale: Tensor | None
) -> bool:
    """Let the layer's own backward pass read ``B`` where it has saved the weight.

    It uses the weight only for the input's gradient. This costs a third of an autograd
    function in Python. Return False where the saved weight cannot be replaced.
    """
    node: Any = outputs.grad_fn
    if outputs.dim() == feedback.dim() - 1:  # one sample: a batch of one, squeezed
        node = node.next_functions[0][0]
    saved = saved_weight(node)
    if saved is None:
        saved = saved_depthwise_weight(node)
    if saved is None:
        return False

    def unpack(dtype: torch.dtype) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("feedback alignment has no second derivatives")
        return scaled(feedback, scale, dtype)

    saved.register_hooks(lambda weight: weight.dtype, unpack)
    return True


def _cast_like_autocast(tensor: Tensor) -> Tensor:
    """Cast as autocast will, so that input and gradient have the same precision."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device) and tensor.dtype is not torch.float64:
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


def _linear(
    layer: Any, inputs: Tensor, weight: Tensor, feedback: Tensor, scale: Tensor | None
) -> Tensor:
    inputs = _cast_like_autocast(inputs)
    outputs = functional.linear(inputs.detach(), weight, layer.bias)
    return _apply(LinearFeedback, inputs, outputs, feedback, scale)


def _convolution(
    layer: Any, inputs: Tensor, weight: Tensor, feedback: Tensor, scale: Tensor | None
) -> Tensor:
    inputs, weight = _cast_like_autocast(inputs), _cast_like_autocast(weight)
    bias = None if layer.bias is None else _cast_like_autocast(layer.bias)
    unbatched = inputs.dim() == weight.dim() - 1
    if unbatched:
        inputs = inputs.unsqueeze(0)
    inputs, padding = _pad(layer, inputs)
    geometry = (layer.stride, padding, layer.dilation, layer.groups)
    outputs = _apply(ConvFeedback, inputs, weight, bias, feedback, scale, *geometry)
    return outputs.squeeze(0) if unbatched else outputs


def _pad(layer: Any, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Add the padding that the convolution itself cannot; return the rest of it.

    Autograd differentiates what is added here.
    """
    before, after = _margins(layer)
    if layer.padding_mode != "zeros":
        pairs = [m for pair in zip(before, after, strict=True) for m in pair]
        return functional.pad(inputs, pairs, layer.padding_mode), (0,) * len(before)
    if not isinstance(layer.padding, str):
        return inputs, layer.padding
    if before != after:
        uneven = [m for b, a in zip(before, after, strict=True) for m in (0, a - b)]
        inputs = functional.pad(inputs, uneven)
    return inputs, tuple(reversed(before))


def _margins(layer: Any) -> tuple[list[int], list[int]]:
    """Return the padding before and after each axis, the last axis first."""
    if layer.padding == "same":
        totals = [
            d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
        ]
        before = [total // 2 for total in reversed(totals)]
        return before, [t - b for t, b in zip(reversed(totals), before, strict=True)]
    if layer.padding == "valid":
        return [0] * len(layer.kernel_size), [0] * len(layer.kernel_size)
    return list(reversed(layer.padding)), list(reversed(layer.padding))


def _apply(function: Any, *args: Any) -> Tensor:
    outputs: Tensor = function.apply(*args)
    return outputs
