"""Feedback alignment on any model, for the length of a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .ablations import DirectForward, OutputError, random_feedback
from .forward import FeedbackForward
from .layers import eligible_layers

__all__ = ["FEEDBACKS", "SCALINGS", "feedback_alignment", "held_scales"]

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
                forward = FeedbackForward(layer, weight, scaling)
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
    forwards = [f for f in aligned if isinstance(f, FeedbackForward)]
    for forward in forwards:
        forward.holds = True
    try:
        yield
    finally:
        for forward in forwards:
            forward.holds = False


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
