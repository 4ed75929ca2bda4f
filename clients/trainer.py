"""The local training loop, with a hook for everything a federated method changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .augmentation import augment
from .buffers import running_statistics_if
from .feedback.alignment import feedback_alignment
from .feedback.diagnostics import feedback_diagnostics
from .settings import TrainSettings
from .sgd import SGD

__all__ = ["LocalTrainer", "TrainingDivergedError"]


CROPS = 0x5EED
"""Sets the seed of the augmentation apart from that of the batch order."""


class TrainingDivergedError(RuntimeError):
    """Local training has produced a loss or a weight that is not finite."""


class LocalTrainer:
    """Train a model on one client's data for one round (FedAvg's client).

    A method subclasses this and overrides the hooks it needs: :meth:`begin`,
    :meth:`loss`, :meth:`compute_gradients`, :meth:`edit_gradients`, :meth:`report`,
    :meth:`state`.
    The order of a step is: gradients (feedback alignment acts here), gradient edit,
    clipping, SGD with momentum and weight decay.

    Parameters
    ----------
    model : nn.Module
        Holds the received global weights; trained in place.
    settings : TrainSettings
        What every method needs.
    config : Mapping[str, Any], optional
        The message's config, for what one method needs (``"proximal-mu"``, say).
    state : Mapping[str, Tensor], optional
        What :meth:`state` returned when this client last took part. A client that
        takes part for the first time, or has lost its state, has none.
    received : Mapping[str, Tensor], optional
        What the message brings besides the model (SCAFFOLD's control variate, say).

    Attributes
    ----------
    augmented : bool
        Whether a sample is another one in each step.
    batch : Tensor
        Which of the local samples are in the present step.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainSettings,
        config: Mapping[str, Any] | None = None,
        state: Mapping[str, Tensor] | None = None,
        received: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.config = dict(config or {})
        self.received_state = dict(state or {})
        self.received = dict(received or {})
        self.augmented = settings.augmentation != "none"
        self.batch = torch.empty(0, dtype=torch.int64)

    def number(self, key: str) -> float:
        """Return a number from the message's config."""
        return float(self._setting(key))

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """Return a name from the message's config, one of those that are allowed."""
        name = str(self._setting(key))
        if name not in allowed:
            raise ValueError(f"{key} is {name!r}; it must be one of {tuple(allowed)}")
        return name

    def _setting(self, key: str) -> Any:
        if key not in self.config:
            raise ValueError(
                f"{type(self).__name__} needs {key!r} in the message's config; use the "
                "strategy of the same method on the server"
            )
        return self.config[key]

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Prepare the round; the model still holds the received weights."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(outputs, targets)

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients of a batch, return its loss (a second pass goes here)."""
        loss = self.loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def edit_gradients(self) -> None:
        """Change the gradients, without autograd, before clipping and the step."""

    def report(self, steps: int) -> dict[str, float]:
        """Return further metrics, given the number of SGD steps taken."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return what this client keeps until it takes part again."""
        return {}

    def fit(self, inputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Train on the local data; return the metrics to report.

        Parameters
        ----------
        inputs, targets : Tensor
            All local samples, on the model's device. Images that are laid out with
            the channels last (``torch.channels_last``) train faster on a CPU;
            the layers follow the layout of their input, the weights keep theirs.

        Returns
        -------
        dict[str, float]
            ``train-loss``: mean over the samples of the last epoch. ``steps``: SGD
            steps taken. What :meth:`report` adds. With diagnostics, what
            :func:`~.feedback.diagnostics.feedback_diagnostics` measures on the first
            samples with the weights at the end.

        Raises
        ------
        TrainingDivergedError
            When the loss or a weight is no longer finite.
        """
        if not 0 < len(inputs) == len(targets):
            raise ValueError(
                "training needs samples and a target for each, not "
                f"{len(inputs)} samples and {len(targets)} targets"
            )
        settings = self.settings
        optimizer = SGD(
            self.model.parameters(),
            learning_rate=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        finite_before = _finite_tensors(self.model)
        measured: dict[str, float] = {}
        with (
            self._begun(inputs, targets),
            feedback_alignment(
                self.model,
                settings.fa_layers,
                feedback=settings.feedback,
                scaling=settings.scaling,
                seed=settings.feedback_seed,
            ),
        ):
            mean_loss, steps = self._run_epochs(optimizer, inputs, targets)
            if settings.diagnostics:
                first = inputs[: settings.batch_size], targets[: settings.batch_size]
                measured = feedback_diagnostics(
                    self.model, settings.fa_layers, *first, self.loss
                )
        self._check_weights(finite_before)
        report = self.report(steps)
        return {"train-loss": mean_loss, "steps": steps, **report, **measured}

    def _run_epochs(
        self, optimizer: SGD, inputs: Tensor, targets: Tensor
    ) -> tuple[float, int]:
        """Return the mean loss of the last epoch and the number of steps."""
        settings = self.settings
        mean_loss, steps = 0.0, 0
        # Generators of their own for batch order and augmentation; dropout has the
        # forked global state. What a method draws moves none of them.
        order = torch.Generator().manual_seed(settings.seed)
        crops = torch.Generator().manual_seed(settings.seed ^ CROPS)
        for epoch in range(1, settings.epochs + 1):
            total = torch.zeros((), device=inputs.device)
            # The order crosses over once: a GPU need not wait for it in every step.
            shuffled = torch.randperm(len(inputs), generator=order).to(inputs.device)
            for batch in torch.split(shuffled, settings.batch_size):
                self.batch = batch
                images = augment(inputs[batch], settings.augmentation, crops)
                total += self._step(optimizer, images, targets[batch])
                steps += 1
            # One look an epoch: a look a step would make a GPU wait.
            mean_loss = float(total) / len(inputs)
            self._check_loss(mean_loss, epoch)
        return mean_loss, steps

    @contextmanager
    def _begun(self, inputs: Tensor, targets: Tensor) -> Iterator[None]:
        """Begin the round, with a random state that is this client's alone."""
        kind = inputs.device.type
        devices = [inputs.device] if kind == "cuda" else []
        # Without its cache, which would keep the first step's weights for the round.
        precision = (
            torch.autocast(kind, torch.bfloat16, cache_enabled=False)
            if self.settings.precision == "bf16"
            else nullcontext()
        )
        with torch.random.fork_rng(devices), precision:
            torch.manual_seed(self.settings.seed)
            self.model.train()
            self.begin(inputs, targets)
            # Once more, so that what a method draws in `begin` does not move dropout.
            torch.manual_seed(self.settings.seed)
            yield

    def _step(self, optimizer: SGD, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one SGD step; return the loss summed over the batch."""
        optimizer.zero_grad()
        # One sample has no batch statistics (on a 1x1 map BatchNorm would raise): it is
        # normalised with the running ones.
        with running_statistics_if(len(inputs) == 1, self.model):
            loss = self.compute_gradients(inputs, targets)
        with torch.no_grad():
            self.edit_gradients()
        if self.settings.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        optimizer.step()
        return loss * len(inputs)

    def _check_loss(self, loss: float, epoch: int) -> None:
        if not torch.isfinite(torch.tensor(loss)):
            raise TrainingDivergedError(
                f"the loss is {loss} in local epoch {epoch} at learning rate "
                f"{self.settings.learning_rate:g}; lower the learning rate or set "
                "clip-norm (5 helps the networks without norm layers)"
            )

    def _check_weights(self, finite_before: set[str]) -> None:
        if broken := finite_before - _finite_tensors(self.model):
            raise TrainingDivergedError(
                f"{min(broken)} is not finite after local training at learning rate "
                f"{self.settings.learning_rate:g}; lower the learning rate or set "
                "clip-norm"
            )


def _finite_tensors(model: nn.Module) -> set[str]:
    """Name the parameters and buffers without nan or infinity (a mask may have it)."""
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    flags = [torch.isfinite(tensor).all() for tensor in tensors.values()]
    if not flags:
        return set()
    # One look at all of them: each would make a GPU wait.
    finite = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
    return {name for name, is_finite in zip(tensors, finite, strict=True) if is_finite}
