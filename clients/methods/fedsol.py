"""FedSOL (Lee et al., CVPR 2024): the gradient at perturbed weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..buffers import kept_buffers
from ..feedback.alignment import held_scales
from ..head import features_of, head_of
from ..trainer import LocalTrainer
from .frozen import FrozenOutputs

__all__ = ["PARTS", "VARIANTS", "FedSOLTrainer"]

VARIANTS = ("adaptive", "fixed")
PARTS = ("all", "head")

DISTILLATION_TEMPERATURE = 3.0
SMALLEST_NORM = 1e-8


class FedSOLTrainer(LocalTrainer):
    """Take the loss's gradient where the *proximal* loss is a little higher.

    Per batch: ``g_p``, the gradient of ``KL(received | local)`` at temperature 3; then
    the gradient of the cross-entropy at ``w + rho L g_p / |g_p|``; then one step from
    w. ``L`` is 1 (``fixed``) or ``|w - W|`` over its norm along the first axis
    (``adaptive``, as in the authors' code). Nothing is perturbed in the first step of a
    round, where w is W and g_p at most rounding, nor where ``|g_p|`` is below 1e-8.
    ``part = "head"`` perturbs the head only, and runs the body once. rho = 0 is FedAvg.

    BatchNorm's statistics see the first pass only. Both passes have the same dropout.
    Layers with feedback alignment have it in both passes, scaled to w, not to w + e.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Keep the received model for its logits."""
        self.rho = self.number("fedsol-rho")
        self.adaptive = self.choice("fedsol-variant", VARIANTS) == "adaptive"
        self.head_only = self.choice("fedsol-part", PARTS) == "head"
        if (
            self.head_only
            and self.settings.fa_layers
            and self.settings.feedback == "dfa"
        ):
            raise ValueError(
                "fedsol-part 'head' runs the head alone a second time, without the "
                "output whose error feedback 'dfa' needs; use 'all'"
            )
        part = head_of(self.model) if self.head_only else self.model
        self.perturbed: list[Any] = [p for p in part.parameters() if p.requires_grad]
        self.received_weights = [p.detach().clone() for p in self.perturbed]
        self.active = self.rho != 0 and bool(self.perturbed)
        self.at_received = True
        if self.active:
            self.anchor_logits = FrozenOutputs(
                self.model, _logits, inputs, augmented=self.augmented
            )
            self.devices = [inputs.device] if inputs.device.type == "cuda" else []

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients with those at the perturbed weights."""
        if not self.active or self.at_received:
            self.at_received = False
            return super().compute_gradients(inputs, targets)
        if self.head_only:
            return self._head_gradients(inputs, targets)
        with torch.random.fork_rng(self.devices):
            proximal = self._proximal_gradients(inputs, self.model(inputs))
        with (
            held_scales(self.model),
            kept_buffers(self.model),
            self._perturbation(proximal),
        ):
            return super().compute_gradients(inputs, targets)

    def _head_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        head = head_of(self.model)
        states: list[Any] = []
        answers: list[Tensor] = []
        hooks = [
            head.register_forward_pre_hook(
                lambda *_: states.append(_random_state(self.devices))
            ),
            head.register_forward_hook(lambda *args: answers.append(args[-1])),
        ]
        try:
            with features_of(self.model) as seen:
                logits = self.model(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if len(answers) != 1 or answers[0] is not logits:
            raise ValueError(
                "fedsol-part 'head' needs a model whose output is that of its head, "
                f"called once; {type(self.model).__name__}'s is not: use 'all'"
            )
        proximal = self._proximal_gradients(inputs, logits)
        with (
            held_scales(head),
            kept_buffers(head),
            self._perturbation(proximal),
            torch.random.fork_rng(self.devices),
        ):
            # The head again, from the same features with the same dropout.
            _set_random_state(states[0], self.devices)
            loss = self.loss(head(seen[0].clone()), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _proximal_gradients(self, inputs: Tensor, logits: Tensor) -> list[Tensor]:
        received = self.anchor_logits.of(self.batch, inputs) / DISTILLATION_TEMPERATURE
        divergence = functional.kl_div(
            functional.log_softmax(logits / DISTILLATION_TEMPERATURE, 1),
            functional.softmax(received, 1),
            reduction="batchmean",
        )
        gradients = torch.autograd.grad(divergence, self.perturbed, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(self.perturbed, gradients, strict=True)
        ]

    @contextmanager
    def _perturbation(self, gradients: list[Tensor]) -> Iterator[None]:
        saved = [p.detach().clone() for p in self.perturbed]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        # On the device: whether the norm is large enough need not be known here.
        size = torch.where(norm >= SMALLEST_NORM, self.rho / (norm + 1e-12), 0.0)
        steps: Any = torch._foreach_mul(gradients, size)
        if self.adaptive:
            moved = torch._foreach_sub(saved, self.received_weights)
            torch._foreach_mul_(steps, [_share(d) for d in moved])
        with torch.no_grad():
            torch._foreach_add_(self.perturbed, steps)
        try:
            yield
        finally:
            # Copied back, not subtracted: the same bits.
            with torch.no_grad():
                torch._foreach_copy_(self.perturbed, saved)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    logits: Tensor = model(inputs)
    return logits


def _share(moved: Tensor) -> Tensor:
    """Return ``|d|`` over its norm along the first axis; 0 where that is 0."""
    sizes = moved.abs()
    norms = torch.linalg.vector_norm(sizes, dim=0, keepdim=True)
    return torch.where(norms > 0, sizes / norms, 0.0)


def _random_state(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _set_random_state(states: list[Tensor], devices: list[torch.device]) -> None:
    torch.set_rng_state(states[0])
    for state, device in zip(states[1:], devices, strict=True):
        torch.cuda.set_rng_state(state, device)
