"""The training of the benchmark on ``pfl``; its processes are started by ``torchrun``.

It runs in an environment of its own, see ``environment.py``, and is written as pfl's
image classification benchmark and its guide to fast simulations: all data in memory,
``user_id_to_weight`` to keep the processes equally busy, no evaluation but where it
cannot be turned off (in the first round, which is not counted).

pfl averages parameters and leaves buffers alone: BatchNorm's running statistics are
those of the last clients of a process. Training does not use them.
"""

# Neither pfl nor the other peer is installed where types are checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import json
import os
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from quickstart.given import initial_model, partition, seed_of, settings
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

EVALUATION_BATCH = 512
# The round and the client: pfl tells a data set nothing of the round.
User = tuple[int, int]


def main() -> None:
    """Train; write the seconds of the rounds and the final weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", required=True)
    parser.add_argument("--output-dir", required=True, type=Path)
    options = parser.parse_args()
    # What torchrun asks for, whether or not the variable is set here.
    torch.set_num_threads(1)
    # pfl draws its seeds from NumPy's; its processes must agree on them.
    np.random.seed(0)  # noqa: NPY002
    module, clock = _module(options.work_dir), Clock()
    _train(options.work_dir, module, clock)
    if os.environ["RANK"] == "0":
        save_file(module.state_dict(), options.output_dir / "final.safetensors")
        seconds = json.dumps(clock.seconds())
        (options.output_dir / "seconds.json").write_text(seconds)
    torch.distributed.destroy_process_group()


def _train(folder: str, module: nn.Module, clock: Clock) -> None:
    given = settings(folder)
    rounds = given["rounds"]
    data = _data(folder)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(
            parameters,
            lr,
            momentum=given["momentum"],
            weight_decay=given["weight-decay"],
        ),
        # The average of the clients' models, as it is.
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(rounds),
            evaluation_frequency=len(rounds),
            train_cohort_size=len(rounds[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=given["local-epochs"],
            local_learning_rate=given["learning-rate"],
            local_batch_size=given["batch-size"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=EVALUATION_BATCH),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )


def _module(folder: str) -> nn.Module:
    """Build the model, with the two functions pfl calls."""
    module: Any = initial_model(folder)

    def loss(self: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return functional.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
        self.eval()
        right = (self(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(right, len(labels))}

    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(metrics, module)
    return module  # type: ignore[no-any-return]


def _data(folder: str) -> FederatedDataset:
    """Return the clients' data, in the order in which they take part."""
    users: list[User] = [
        (server_round, int(client))
        for server_round, clients in enumerate(settings(folder)["rounds"], start=1)
        for client in clients
    ]

    def make_dataset(user: User) -> ShuffledDataset:
        seed = seed_of(folder, *user)
        torch.manual_seed(seed)  # dropout leaves out the same in every arm
        return ShuffledDataset(partition(folder, user[1]).tensors, user, seed)

    sizes = {user: len(partition(folder, user[1])) for user in users}
    sampler = MinimizeReuseUserSampler(users)
    return FederatedDataset(make_dataset, sampler, user_id_to_weight=sizes)


class ShuffledDataset(Dataset):  # type: ignore[misc]
    """A client's data that is shuffled anew in each epoch; pfl's own never is."""

    def __init__(self, tensors: tuple[Tensor, ...], user: User, seed: int) -> None:
        super().__init__(tensors, user_id=str(user))
        self.generator = torch.Generator().manual_seed(seed)

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        """Yield the batches of an epoch; those of an evaluation are in order."""
        if batch_size is None or batch_size >= EVALUATION_BATCH:
            yield from super().iter(batch_size)
            return
        order = torch.randperm(len(self), generator=self.generator)
        for batch in torch.split(order, batch_size):
            yield [tensor[batch] for tensor in self.raw_data]


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Takes the time of each round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Begin the first round."""
        self.ends.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """End a round, and go on."""
        self.ends.append(time.perf_counter())
        return False, Metrics()

    def seconds(self) -> list[float]:
        """Return the time of each round."""
        return np.diff(self.ends).tolist()


if __name__ == "__main__":
    main()
