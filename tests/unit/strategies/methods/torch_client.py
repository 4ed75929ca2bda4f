"""Nodes that really train: the trainers of ``clients`` on a tiny network."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor, nn

from clients import LocalTrainer, TrainSettings
from tests.unit.strategies.fakes import answer, record


def network() -> nn.Module:
    """In double precision, so that identities hold to many digits."""
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
        return nn.Sequential(*layers).double()


def data_of(node: int) -> tuple[Tensor, Tensor]:
    """Node i has 6 + i samples of its own."""
    generator = torch.Generator().manual_seed(node)
    inputs = torch.randn(6 + node, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(6 + node) % 3


class TorchClient:
    """Keep each node's state, as the ClientApp does with its context."""

    def __init__(self, trainer: type[LocalTrainer], settings: TrainSettings) -> None:
        self.trainer = trainer
        self.settings = settings
        self.states: dict[int, dict[str, Tensor]] = {}
        self.parameters = [name for name, _ in network().named_parameters()]

    @property
    def initial(self) -> ArrayRecord:
        return record({k: t.numpy() for k, t in network().state_dict().items()})

    def __call__(self, message: Message) -> RecordDict:
        node = message.metadata.dst_node_id
        records: dict[str, Any] = dict(message.content.array_records)
        model = network()
        model.load_state_dict(_tensors(records.pop("arrays")))
        settings = dataclasses.replace(
            self.settings,
            epochs=1 + node % 3,
            seed=message.content["config"]["server-round"],
        )
        trainer = self.trainer(
            model,
            settings,
            dict(message.content["config"]),
            state=self.states.get(node),
            received=_tensors(*records.values()),
        )
        inputs, targets = data_of(node)
        metrics = trainer.fit(inputs, targets)
        self.states[node] = trainer.state()
        arrays = {k: t.numpy() for k, t in model.state_dict().items()}
        return answer(arrays, len(targets), **metrics)


def _tensors(*records: ArrayRecord) -> dict[str, Tensor]:
    return {
        k: torch.from_numpy(np.array(a.numpy())) for r in records for k, a in r.items()
    }
