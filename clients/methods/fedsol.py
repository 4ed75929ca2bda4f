"""FedSOL (Lee et al., CVPR 2024): the gradient at perturbed weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._torch_compat import (
    foreach_add_,
    foreach_copy_,
    foreach_mul,
    foreach_mul_,
    foreach_norm,
    foreach_sub,
)
from ..feedback.alignment import fixed_scales
from ..head import capture_features, classifier_head
from ..model_state import preserved_buffers
from ..trainer import LocalTrainer
from .frozen import FrozenOutputs

__all__ = ["PARTS", "VARIANTS", "FedSOLTrainer"]

VARIANTS = ("adaptive", "fixed")
PARTS = ("all", "head")

DISTILLATION_TEMPERATURE = 3.0
SMALLEST_NORM = 1e-8


class FedSOLTrainer(LocalTrainer):
    """Compute the loss's gradient at weights where the *proximal* loss is higher.

    For each batch: ``g_p``, the gradient of ``KL(received | local)`` at temperature 3;
    then the gradient of the cross-entropy at ``w + e`` with ``e = rho L g_p / |g_p|``;
    then one step from w. ``L`` is 1 (``fixed``) or ``|w - W|`` over its norm along the
    first axis (``adaptive``, as in the authors' code). The first step of a round is not
    perturbed: there w is W, and g_p is zero up to rounding. Nor is any step with
    ``|g_p|`` below 1e-8. ``part = "head"`` perturbs the head only and runs the body
    once. rho = 0 is FedAvg.

    Only the first pass updates BatchNorm's statistics. Both passes have the same
    dropout. Feedback alignment acts in both passes, with ``B`` scaled to w, not to
    w + e.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Copy the received weights, and compute the received model's logits."""
        self.rho = self.number("fedsol-rho")
        self.adaptive = self.choice("fedsol-variant", VARIANTS) == "adaptive"
        self.head_only = self.choice("fedsol-part", PARTS) == "head"
        if (
            self.head_only
            and self.settings.fa_layers
            and self.settings.feedback == "dfa"
        ):
            raise ValueError(
                "fedsol-part 'head' runs only the head in the second pass, but "
                "feedback 'dfa' needs the error at the model's output; use "
                "fedsol-part 'all'"
            )
        part = classifier_head(self.model) if self.head_only else self.model
        self.perturbed: list[Any] = [p for p in part.parameters() if p.requires_grad]
        self.received_weights = [p.detach().clone() for p in self.perturbed]
        self.active = self.rho != 0 and bool(self.perturbed)
        self.at_received = True
        if self.active:
            self.received_logits = FrozenOutputs(
                self.model, _logits, inputs, augmented=self.augmented
            )
            self.devices = [inputs.device] if inputs.device.type == "cuda" else []

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients with those of the loss at the perturbed weights."""
        if not self.active or self.at_received:
            self.at_received = False
            return super().compute_gradients(inputs, targets)
        if self.head_only:
            return self._head_gradients(inputs, targets)
        with torch.random.fork_rng(self.devices):
            proximal = self._proximal_gradients(inputs, self.model(inputs))
        with (
            fixed_scales(self.model),
            preserved_buffers(self.model),
            self._perturbed_weights(proximal),
        ):
            return super().compute_gradients(inputs, targets)

    def _head_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run the body once and the head twice, the second time perturbed."""
        head = classifier_head(self.model)
        random_states: list[Any] = []
        head_outputs: list[Tensor] = []
        hooks = [
            head.register_forward_pre_hook(
                lambda *_: random_states.append(_random_state(self.devices))
            ),
            head.register_forward_hook(lambda *args: head_outputs.append(args[-1])),
        ]
        try:
            with capture_features(self.model) as captured:
                logits = self.model(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if len(head_outputs) != 1 or head_outputs[0] is not logits:
            raise ValueError(
                "fedsol-part 'head' needs a model whose output is that of its head, "
                f"called once; that is not so for {type(self.model).__name__}: use "
                "fedsol-part 'all'"
            )
        proximal = self._proximal_gradients(inputs, logits)
        with (
            fixed_scales(head),
            preserved_buffers(head),
            self._perturbed_weights(proximal),
            torch.random.fork_rng(self.devices),
        ):
            # The second pass has the same features and the same dropout.
            _set_random_state(random_states[0], self.devices)
            loss = self.loss(head(captured[0]), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _proximal_gradients(self, inputs: Tensor, logits: Tensor) -> list[Tensor]:
        received = self.received_logits.for_batch(self.batch, inputs)
        divergence = functional.kl_div(
            functional.log_softmax(logits / DISTILLATION_TEMPERATURE, 1),
            functional.softmax(received / DISTILLATION_TEMPERATURE, 1),
            reduction="batchmean",
        )
        gradients = torch.autograd.grad(divergence, self.perturbed, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(self.perturbed, gradients, strict=True)
        ]

    @contextmanager
    def _perturbed_weights(self, gradients: list[Tensor]) -> Iterator[None]:
        """Add ``rho L g_p / |g_p|`` to the weights inside the block."""
        saved = [p.detach().clone() for p in self.perturbed]
        norm = torch.linalg.vector_norm(torch.stack(foreach_norm(gradients)))
        # Decided on the device, so that a GPU need not wait for the norm.
        factor = torch.where(norm >= SMALLEST_NORM, self.rho / (norm + 1e-12), 0.0)
        perturbation: Any = foreach_mul(gradients, factor)
        if self.adaptive:
            updates = foreach_sub(saved, self.received_weights)
            foreach_mul_(perturbation, [_normalised(update) for update in updates])
        with torch.no_grad():
            foreach_add_(self.perturbed, perturbation)
        try:
            yield
        finally:
            # Copied, not subtracted, so that the weights have the same bits again.
            with torch.no_grad():
                foreach_copy_(self.perturbed, saved)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    logits: Tensor = model(inputs)
    return logits


def _normalised(update: Tensor) -> Tensor:
    """Return ``|d|`` over its norm along the first axis; 0 where the norm is 0."""
    sizes = update.abs()
    norms = torch.linalg.vector_norm(sizes, dim=0, keepdim=True)
    return torch.where(norms > 0, sizes / norms, 0.0)


def _random_state(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _set_random_state(states: list[Tensor], devices: list[torch.device]) -> None:
    torch.set_rng_state(states[0])
    for state, device in zip(states[1:], devices, strict=True):
        torch.cuda.set_rng_state(state, device)
