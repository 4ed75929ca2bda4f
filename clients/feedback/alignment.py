"""Feedback alignment of any model, inside a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from .._torch_compat import weight_from_hooks
from ..model_state import evaluation_mode
from .ablations import DirectForward, OutputError, random_feedback
from .aligned_layer import FeedbackForward
from .layers import eligible_layers

__all__ = ["FEEDBACKS", "SCALINGS", "feedback_alignment", "fixed_scales"]

FEEDBACKS = ("global", "random", "dfa")
SCALINGS = ("tensor", "channel", "none")


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
    and bias, as before. The gradient of its *input* goes through ``B``: the weight it
    had on entry, rescaled to the norm of its current weight (paper, Section 4.1). On
    exit the layers are plain again. Without layers, or before the first step, this is
    backpropagation.

    Parameters
    ----------
    model : nn.Module
        Any model. It must hold the received global weights on entry.
    layers : Iterable[str]
        Names as in ``model.named_modules()``; see :func:`~.layers.eligible_layers`.
    feedback : str (default: "global")
        Where ``B`` comes from. ``"global"`` is the weight on entry. The others are
        ablations of the paper: ``"random"`` draws ``B`` from the seed, with the norm of
        the weight; ``"dfa"`` sends the error at the model's output directly to the
        layer's output.
    scaling : str (default: "tensor")
        ``"tensor"``: ``B`` has the norm of the current weight (the paper);
        ``"channel"``: the same for each output channel; ``"none"``: no rescaling.
    seed : int (default: 0)
        Seed of random and direct feedback; it must be the same on all clients.

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
    if unusable := [name for name in names if name not in eligible]:
        raise ValueError(
            f"no feedback alignment for layer {', '.join(map(repr, unusable))}: "
            "unknown, not eligible, or already aligned; "
            f"eligible layers: {', '.join(map(repr, eligible)) or 'none'}"
        )
    if feedback == "dfa" and eligible and eligible[-1] in names:
        raise ValueError(
            f"no direct feedback for layer {eligible[-1]!r}: it is the model's last "
            "layer and receives the output's error anyway; leave it out"
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
                forward = FeedbackForward(layer, weight, scaling)
            stack.enter_context(_replaced_forward(layer, forward))
        yield


@contextmanager
def _replaced_forward(layer: nn.Module, forward: Any) -> Iterator[None]:
    """Replace a layer's ``forward`` inside the block."""
    # An instance attribute takes precedence over the class's method.
    original = vars(layer).get("forward")
    vars(layer)["forward"] = forward
    try:
        yield
    finally:
        if original is None:
            del vars(layer)["forward"]
        else:
            vars(layer)["forward"] = original


@contextmanager
def fixed_scales(model: nn.Module) -> Iterator[None]:
    """Keep the scale that each aligned layer had in its last forward pass.

    For methods that perturb the weights for a moment: ``B`` is scaled to the weights of
    the step, not to the perturbed ones.
    """
    forwards = [
        forward
        for layer in model.modules()
        if isinstance(forward := vars(layer).get("forward"), FeedbackForward)
    ]
    for forward in forwards:
        forward.scale_is_fixed = True
    try:
        yield
    finally:
        for forward in forwards:
            forward.scale_is_fixed = False


def _weight_on_entry(layer: Any) -> Tensor:
    """Return a copy of the layer's weight without changing the layer."""
    # In training mode, reading a spectrally normalised weight changes its buffers.
    with evaluation_mode(layer):
        weight: Tensor | None = weight_from_hooks(layer)
        if weight is None:
            weight = layer.weight
        return weight.detach().clone()
