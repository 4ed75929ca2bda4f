"""Feedback alignment on any model, for the length of a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .ablations import DirectForward, OutputError, random_feedback
from .feedback import ConvFeedback, LinearFeedback
from .layers import eligible_layers

__all__ = ["FEEDBACKS", "SCALINGS", "feedback_alignment", "held_scales"]

FEEDBACKS = ("global", "random", "dfa")
SCALINGS = ("tensor", "channel", "none")

_CONVOLUTIONS = {
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
    nn.Conv3d: functional.conv3d,
}


@contextmanager
def feedback_alignment(
    model: nn.Module,
    layers: Iterable[str],
    *,
    feedback: str = "global",
    scaling: str = "tensor",
    seed: int = 0,
) -> Iterator[None]:
    """Let the named layers propagate the error with the weights they have on entry.

    Inside the block a named layer computes its output, and the gradients of its weight
    and bias, as always; the gradient of its *input* goes through ``B``, the weight it
    had on entry, rescaled to the norm of its present weight (paper, Section 4.1). On
    exit the model is as it was. No layer, or no step: plain backpropagation.

    Parameters
    ----------
    model : nn.Module
        Any model. Enter with the received global weights loaded.
    layers : Iterable[str]
        Names as in ``model.named_modules()``; see :func:`~.layers.eligible_layers`.
    feedback : str (default: "global")
        Where ``B`` comes from: ``"global"``, the weight on entry. The ablations of the
        paper: ``"random"``, drawn from the seed, with the norm of the weight;
        ``"dfa"``, the error at the model's output, sent to the layer's output directly.
    scaling : str (default: "tensor")
        ``"tensor"``: ``B`` has the norm of the present weight (the paper);
        ``"channel"``: the same for each output channel; ``"none"``: no rescaling.
    seed : int (default: 0)
        Of the random feedback; all clients must have the same.

    Raises
    ------
    ValueError
        For an unknown or ineligible layer, ``feedback`` or ``scaling``.
    """
    if isinstance(layers, str):
        raise ValueError(f"layers must be a collection of names, not {layers!r}")
    if feedback not in FEEDBACKS:
        raise ValueError(f"feedback {feedback!r} is unknown; allowed: {FEEDBACKS}")
    if scaling not in SCALINGS:
        raise ValueError(f"scaling {scaling!r} is unknown; allowed: {SCALINGS}")
    names = list(dict.fromkeys(layers))
    eligible = eligible_layers(model)
    if wrong := [name for name in names if name not in eligible]:
        raise ValueError(
            f"no feedback alignment for layer {', '.join(map(repr, wrong))}: unknown, "
            "not eligible, or already aligned; "
            f"eligible layers: {', '.join(map(repr, eligible)) or 'none'}"
        )
    if feedback == "dfa" and eligible and eligible[-1] in names:
        raise ValueError(
            f"no direct feedback for layer {eligible[-1]!r}: it is the model's last, "
            "whose error is the output's own"
        )
    with ExitStack() as stack:
        if feedback == "dfa" and names:
            error = OutputError(model)
            stack.callback(error.remove)
        for name in names:
            layer = model.get_submodule(name)
            forward: Any
            if feedback == "dfa":
                forward = DirectForward(layer, name, error, seed)
            else:
                weight = _weight_on_entry(layer)
                if feedback == "random":
                    weight = random_feedback(name, weight, seed)
                forward = _FeedbackForward(layer, weight, scaling)
            stack.enter_context(_attached(layer, forward))
        yield


@contextmanager
def _attached(layer: nn.Module, forward: Any) -> Iterator[None]:
    """Give a layer another ``forward`` for the length of the block."""
    # An instance attribute hides the method of the class until it is deleted.
    hidden = vars(layer).get("forward")
    vars(layer)["forward"] = forward
    try:
        yield
    finally:
        if hidden is None:
            del vars(layer)["forward"]
        else:
            vars(layer)["forward"] = hidden


@contextmanager
def held_scales(model: nn.Module) -> Iterator[None]:
    """Keep the scale each aligned layer had when it was last used.

    For a method that moves the weights for a moment: B follows the weights of the
    step, not the moved ones.
    """
    aligned = [vars(layer).get("forward") for layer in model.modules()]
    forwards = [f for f in aligned if isinstance(f, _FeedbackForward)]
    for forward in forwards:
        forward.holds = True
    try:
        yield
    finally:
        for forward in forwards:
            forward.holds = False


class _FeedbackForward:
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
        self.scale = None if self.norm is None else torch.ones_like(self.norm)
        self.holds = False

    def __call__(self, input: Tensor) -> Tensor:
        layer = self.layer
        if not (torch.is_grad_enabled() and input.requires_grad):
            # No error to propagate: the first layer, or an evaluation.
            plain: Tensor = type(layer).forward(layer, input)
            return plain
        inputs = _as_autocast_would(input)
        weight = layer.weight  # read once: a parametrised weight is computed here
        if not self.holds:
            self.scale = self._scale(weight)
        scale = self.scale
        if isinstance(layer, nn.Linear):
            outputs = functional.linear(inputs.detach(), weight, layer.bias)
            return _apply(LinearFeedback, inputs, outputs, self.feedback, scale)
        return _aligned_convolution(layer, inputs, weight, self.feedback, scale)

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

    def _scale(self, weight: Tensor) -> Tensor | None:
        """Return ``|w| / |W|``, exactly 1 while the weight is the one on entry."""
        norm = self._norm(weight)
        if norm is None or self.norm is None:
            return None
        return torch.where(self.norm > 0, norm / self.norm, 1.0)

    def __reduce__(self) -> tuple[Any, ...]:
        # For copy and pickle: the layer they make is not in this block.
        return _plain_forward, (self.layer,)


def _plain_forward(layer: nn.Module) -> Any:
    return MethodType(type(layer).forward, layer)


def _weight_on_entry(layer: Any) -> Tensor:
    """Return a copy of the layer's weight without changing the layer."""
    modes = [(module, module.training) for module in layer.modules()]
    # In training mode reading a spectrally normalised weight would change its buffers.
    layer.eval()
    try:
        weight: Tensor = layer.weight
        for hook in layer._forward_pre_hooks.values():
            # torch's older ways to derive a weight do so only when the layer is called.
            if isinstance(hook, WeightNorm) and hook.name == "weight":
                weight = hook.compute_weight(layer)
            elif isinstance(hook, SpectralNorm) and hook.name == "weight":
                weight = hook.compute_weight(layer, do_power_iteration=False)
            elif isinstance(hook, BasePruningMethod) and hook._tensor_name == "weight":
                pruned: Any = hook.apply_mask
                weight = pruned(layer)
        return weight.detach().clone()
    finally:
        for module, training in modes:
            module.training = training


def _as_autocast_would(inputs: Tensor) -> Tensor:
    """Cast as autocast is about to, so that input and gradient have one precision."""
    device = inputs.device.type
    if torch.is_autocast_enabled(device) and inputs.dtype is not torch.float64:
        return inputs.to(torch.get_autocast_dtype(device))
    return inputs


def _aligned_convolution(
    layer: Any, inputs: Tensor, weight: Tensor, feedback: Tensor, scale: Tensor | None
) -> Tensor:
    convolve = next(f for kind, f in _CONVOLUTIONS.items() if isinstance(layer, kind))
    unbatched = inputs.dim() == weight.dim() - 1
    if unbatched:
        inputs = inputs.unsqueeze(0)
    inputs, padding = _pad(layer, inputs)
    geometry = (layer.stride, padding, layer.dilation, layer.groups)
    outputs = convolve(inputs.detach(), weight, layer.bias, *geometry)
    joined = _apply(ConvFeedback, inputs, outputs, feedback, scale, *geometry)
    return joined.squeeze(0) if unbatched else joined


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
    joined: Tensor = function.apply(*args)
    return joined
