"""Measure how far feedback alignment is from backpropagation, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..model_state import preserved_buffers, use_running_statistics
from .aligned_layer import FeedbackForward

__all__ = ["ANGLE", "ERROR", "feedback_diagnostics"]

ANGLE = "fa-angle"
ERROR = "fa-error"


def feedback_diagnostics(
    model: nn.Module,
    layers: Sequence[str],
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, float]:
    """Measure angle and gradient error of the aligned layers on one batch.

    Call it inside :func:`~.alignment.feedback_alignment`. It does not change the
    model's weights, statistics and gradients, nor the random state.

    Parameters
    ----------
    model : nn.Module
        The model, at any time during its local training.
    layers : Sequence[str]
        The aligned layers.
    inputs, targets : Tensor
        The batch.
    loss : Callable[[Tensor, Tensor], Tensor]
        Loss of outputs and targets. The trainers pass their own :meth:`loss`, so terms
        that a method adds elsewhere (MOON's contrast) are not part of it, and the
        weights are not perturbed (FedSOL).

    Returns
    -------
    dict[str, float]
        ``fa-angle/<layer>``: degrees between ``B`` and the layer's current weight; not
        for direct feedback, whose ``B`` has another shape. ``fa-error/<layer>``:
        ``|g_B - g| / |g|`` with alignment in this layer alone, where ``g`` are the
        gradients of all parameters (the paper's G, relative); 0 if ``g`` is 0.
    """
    layers = list(dict.fromkeys(layers))
    if not layers:
        return {}
    forwards = {x: vars(model.get_submodule(x)).get("forward") for x in layers}
    if plain := [name for name, forward in forwards.items() if forward is None]:
        raise ValueError(
            f"layer {plain[0]!r} is not aligned; call feedback_diagnostics inside "
            "feedback_alignment"
        )
    metrics: dict[str, float] = {}
    with preserved_buffers(model):
        with _aligned_only(model, layers, None):
            true = _gradients(model, inputs, targets, loss)
        true_norm = _norm(true)
        for name, forward in forwards.items():
            if isinstance(forward, FeedbackForward):
                metrics[f"{ANGLE}/{name}"] = _angle(forward)
            with _aligned_only(model, layers, name):
                aligned = _gradients(model, inputs, targets, loss)
            error = _norm([a - b for a, b in zip(aligned, true, strict=True)])
            metrics[f"{ERROR}/{name}"] = error / true_norm if true_norm != 0 else 0.0
    return metrics


@contextmanager
def _aligned_only(
    model: nn.Module, layers: Sequence[str], aligned: str | None
) -> Iterator[None]:
    """Make all of ``layers`` plain, except for the one named ``aligned``."""
    plain = [vars(model.get_submodule(name)) for name in layers if name != aligned]
    forwards = [attributes.pop("forward") for attributes in plain]
    try:
        yield
    finally:
        for attributes, forward in zip(plain, forwards, strict=True):
            attributes["forward"] = forward


def _gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Return the gradients of all trainable parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    # All passes have the same dropout, and the caller's random state is restored.
    with (
        torch.random.fork_rng(devices),
        use_running_statistics(model, enabled=len(inputs) == 1),
        preserved_buffers(model),
    ):
        value = loss(model(inputs), targets)
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    return [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, gradients, strict=True)
    ]


def _norm(tensors: list[Tensor]) -> float:
    norms = torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])
    return float(torch.linalg.vector_norm(norms))


def _angle(forward: FeedbackForward) -> float:
    """Return the degrees between ``B`` and the weight; 0 if one of them is zero."""
    weight = forward.layer.weight.detach()
    scale = forward.scale_for(weight)
    feedback = forward.feedback.double() * (1.0 if scale is None else scale)
    weight = weight.double()
    # From chord lengths: the arc cosine of a number near 1 loses half of the digits.
    a = feedback * torch.linalg.vector_norm(weight)
    b = weight * torch.linalg.vector_norm(feedback)
    difference, total = (torch.linalg.vector_norm(t) for t in (a - b, a + b))
    return float(torch.rad2deg(2 * torch.atan2(difference, total)))
