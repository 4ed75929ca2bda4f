"""The local training loop, with a hook for everything a federated method changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .augmentation import augment
from .divergence import check_loss, check_tensors, finite_tensors
from .feedback.alignment import feedback_alignment
from .feedback.diagnostics import feedback_diagnostics
from .model_state import use_running_statistics
from .settings import TrainSettings
from .sgd import SGD

__all__ = ["LocalTrainer"]

AUGMENTATION_SEED = 0x5EED
"""Combined with the seed so that augmentation and batch order draw other numbers."""


class LocalTrainer:
    """Train a model on one client's data for one round (FedAvg's client).

    A method subclasses this and overrides the hooks it needs: :meth:`begin`,
    :meth:`loss`, :meth:`compute_gradients`, :meth:`edit_gradients`, :meth:`report`,
    :meth:`state`. The order of a step is: gradients (feedback alignment acts here),
    gradient edit, clipping, SGD with momentum and weight decay.

    Parameters
    ----------
    model : nn.Module
        Holds the received global weights; trained in place.
    settings : TrainSettings
        The settings that all methods share.
    config : Mapping[str, Any], optional
        The message's config, for options of one method (``"proximal-mu"``, say).
    state : Mapping[str, Tensor], optional
        What :meth:`state` returned when this client last participated. A client that
        participates for the first time, or has lost its state, has none.
    received : Mapping[str, Tensor], optional
        Tensors of the message besides the model (SCAFFOLD's control variate, say).

    Attributes
    ----------
    config, received_state, received : dict
        Copies of ``config``, ``state`` and ``received``; empty where they are missing.
    augmented : bool
        Whether augmentation changes the samples from step to step.
    batch : Tensor
        Indices of the local samples in the current step.
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
        return float(self._option(key))

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """Return a name from the message's config; it must be one of ``allowed``."""
        name = str(self._option(key))
        if name not in allowed:
            raise ValueError(f"{key} is {name!r}; it must be one of {tuple(allowed)}")
        return name

    def _option(self, key: str) -> Any:
        if key not in self.config:
            raise ValueError(
                f"{type(self).__name__} needs {key!r} in the message's config; use the "
                "strategy of the same method on the server"
            )
        return self.config[key]

    # --- Hooks for methods --------------------------------------------------------

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Prepare the round; the model still holds the received weights."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(outputs, targets)

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients for a batch and return its loss.

        A method that needs a second pass overrides this.
        """
        loss = self.loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def edit_gradients(self) -> None:
        """Change the gradients, without autograd, before clipping and the step."""

    def report(self, steps: int) -> dict[str, float]:
        """Return further metrics, given the number of SGD steps taken."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to store until this client participates again."""
        return {}

    # --- The loop -----------------------------------------------------------------

    def fit(self, inputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Train on the local data; return the metrics to report.

        Parameters
        ----------
        inputs, targets : Tensor
            All local samples, on the model's device. Images in channels-last layout
            (``torch.channels_last``) train faster on a CPU; the layers follow the
            layout of their input, the weights keep theirs.

        Returns
        -------
        dict[str, float]
            ``train-loss``: mean over the samples of the last epoch. ``steps``: SGD
            steps taken. The metrics that :meth:`report` adds. With diagnostics, those
            of :func:`~.feedback.diagnostics.feedback_diagnostics`, measured on the
            first samples with the trained weights.

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
        finite_on_entry = finite_tensors(self.model)
        diagnostics: dict[str, float] = {}
        with (
            self._started_round(inputs, targets),
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
                diagnostics = feedback_diagnostics(
                    self.model, settings.fa_layers, *first, self.loss
                )
        check_tensors(self.model, finite_on_entry, settings.learning_rate)
        report = self.report(steps)
        return {"train-loss": mean_loss, "steps": steps, **report, **diagnostics}

    @contextmanager
    def _started_round(self, inputs: Tensor, targets: Tensor) -> Iterator[None]:
        """Call :meth:`begin`, and run the block with this client's own random state."""
        device_type = inputs.device.type
        devices = [inputs.device] if device_type == "cuda" else []
        # Without its cache, which would keep the first step's weights for the round.
        precision = (
            torch.autocast(device_type, torch.bfloat16, cache_enabled=False)
            if self.settings.precision == "bf16"
            else nullcontext()
        )
        with torch.random.fork_rng(devices), precision:
            torch.manual_seed(self.settings.seed)
            self.model.train()
            self.begin(inputs, targets)
            # Seed again, so that a method that draws in `begin` has the same dropout.
            torch.manual_seed(self.settings.seed)
            yield

    def _run_epochs(
        self, optimizer: SGD, inputs: Tensor, targets: Tensor
    ) -> tuple[float, int]:
        """Return the mean loss of the last epoch and the number of steps."""
        settings = self.settings
        mean_loss, steps = 0.0, 0
        # Batch order and augmentation have their own generators, dropout the forked
        # global one, so that random draws of a method change none of them.
        order = torch.Generator().manual_seed(settings.seed)
        crops = torch.Generator().manual_seed(settings.seed ^ AUGMENTATION_SEED)
        for epoch in range(1, settings.epochs + 1):
            total = torch.zeros((), device=inputs.device)
            # One transfer of the order for the epoch: a GPU need not wait in each step.
            shuffled = torch.randperm(len(inputs), generator=order).to(inputs.device)
            for batch in torch.split(shuffled, settings.batch_size):
                self.batch = batch
                images = augment(inputs[batch], settings.augmentation, crops)
                total += self._step(optimizer, images, targets[batch])
                steps += 1
            # The loss is read once an epoch: reading it makes a GPU wait.
            mean_loss = float(total) / len(inputs)
            check_loss(mean_loss, epoch, settings.learning_rate)
        return mean_loss, steps

    def _step(self, optimizer: SGD, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one SGD step; return the loss summed over the batch."""
        optimizer.zero_grad()
        # A single sample has no batch statistics (on a 1x1 map BatchNorm would raise),
        # so it is normalised with the running ones.
        with use_running_statistics(self.model, enabled=len(inputs) == 1):
            loss = self.compute_gradients(inputs, targets)
        with torch.no_grad():
            self.edit_gradients()
        if self.settings.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        optimizer.step()
        return loss * len(inputs)
