"""How far feedback alignment is from backpropagation, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..buffers import kept_buffers, running_statistics_if
from .forward import FeedbackForward

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
    """Measure the alignment of the aligned layers on one batch.

    Call it inside :func:`~.alignment.feedback_alignment`. The model keeps its weights,
    statistics, gradients and random state.

    Parameters
    ----------
    model : nn.Module
        The model, somewhere in its local training.
    layers : Sequence[str]
        The aligned layers.
    inputs, targets : Tensor
        The batch.
    loss : Callable[[Tensor, Tensor], Tensor]
        Of outputs and targets. The trainers give theirs, without what a method adds
        beside it (MOON's contrast) and at the present weights (FedSOL's are moved).

    Returns
    -------
    dict[str, float]
        ``fa-angle/<layer>``: degrees between ``B`` and the layer's present weight; left
        out for direct feedback, which has no such ``B``. ``fa-error/<layer>``: with
        alignment in this layer alone, ``|g_B - g| / |g|``, the norms being over the
        gradients of all parameters (the paper's G, relative); 0 where ``g`` is.
    """
    layers = list(dict.fromkeys(layers))
    if not layers:
        return {}
    forwards = {x: vars(model.get_submodule(x)).get("forward") for x in layers}
    if plain := [name for name, forward in forwards.items() if forward is None]:
        raise ValueError(f"layer {plain[0]!r} is not aligned; use it inside the block")
    measured: dict[str, float] = {}
    with kept_buffers(model):
        with _aligned_only(model, layers, ()):
            true = _gradients(model, inputs, targets, loss)
        size = _norm(true)
        for name, forward in forwards.items():
            if isinstance(forward, FeedbackForward):
                measured[f"{ANGLE}/{name}"] = _angle(forward)
            with _aligned_only(model, layers, (name,)):
                aligned = _gradients(model, inputs, targets, loss)
            apart = _norm([a - b for a, b in zip(aligned, true, strict=True)])
            measured[f"{ERROR}/{name}"] = apart / size if size != 0 else 0.0
    return measured


@contextmanager
def _aligned_only(
    model: nn.Module, layers: Sequence[str], kept: Sequence[str]
) -> Iterator[None]:
    """Let only the ``kept`` ones of the aligned layers be aligned."""
    plain = [vars(model.get_submodule(name)) for name in layers if name not in kept]
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
    # The same dropout in all passes, and the caller's afterwards.
    with (
        torch.random.fork_rng(devices),
        running_statistics_if(len(inputs) == 1, model),
        kept_buffers(model),
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
    # By chords: the arc cosine of a number near 1 has half its digits.
    one = feedback * torch.linalg.vector_norm(weight)
    other = weight * torch.linalg.vector_norm(feedback)
    apart, along = (torch.linalg.vector_norm(t) for t in (one - other, one + other))
    return float(torch.rad2deg(2 * torch.atan2(apart, along)))
