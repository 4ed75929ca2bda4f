"""The methods: one line each."""

from __future__ import annotations

from typing import NamedTuple

from clients import LocalTrainer
from strategies import FLFAFedAvg, LayerSelection

__all__ = ["ALGORITHMS", "Method"]


class Method(NamedTuple):
    """The two sides of a federated method."""

    strategy: type[LayerSelection]
    trainer: type[LocalTrainer]


ALGORITHMS: dict[str, Method] = {
    "fedavg": Method(FLFAFedAvg, LocalTrainer),
}
