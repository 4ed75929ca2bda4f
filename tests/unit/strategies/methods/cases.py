"""The methods, a model with buffers, clients for it, and Flower's loop by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg, FedProx, Strategy

from strategies.methods.fedacg import FedACG, FLFAFedACG
from strategies.methods.feddyn import FedDyn, FLFAFedDyn
from strategies.methods.fedlc import FedLC, FLFAFedLC
from strategies.methods.fedprox import FLFAFedProx
from strategies.methods.fedrs import FedRS, FLFAFedRS
from strategies.methods.fedsol import FedSOL, FLFAFedSOL
from strategies.methods.momentum import FLFAServerMomentum, ServerMomentum
from strategies.methods.moon import FLFAMOON, MOON
from strategies.methods.scaffold import FLFAScaffold, Scaffold
from tests.unit.strategies.fakes import (
    Answer,
    Client,
    FakeGrid,
    bits,
    ndarrays,
    noisy_client,
    plan_client,
    record,
)

NODES = 4
LAYERS = ["stem", "fc"]
PARAMETERS = ("stem.weight", "fc.weight", "a.bias")
BUFFERS = ("stem.running_var", "stem.count")


class Case(NamedTuple):
    """A method with settings that are neither its defaults nor neutral."""

    plain: type[FedAvg]
    flfa: type[FedAvg]
    own: dict[str, Any]
    sent: dict[str, Any]  # what the clients must be told

    def build(self, *, flfa: bool = False, **further: Any) -> Any:
        kwargs = {**self.own, **further}
        if self.plain is not FedProx:
            kwargs = {"parameters": PARAMETERS, **kwargs}
        return (
            self.flfa(layers=LAYERS, rule="lowest", **kwargs)
            if flfa
            else self.plain(**kwargs)
        )


def _momentum(form: str) -> Case:
    own = {"form": form, "server_momentum": 0.9, "server_learning_rate": 0.5}
    return Case(ServerMomentum, FLFAServerMomentum, own, {})


METHODS = {
    "dampened": _momentum("dampened"),
    "heavy-ball": _momentum("heavy-ball"),
    "nesterov": _momentum("nesterov"),
    "FedACG": Case(
        FedACG, FLFAFedACG, {"lookahead": 0.7, "beta": 0.5}, {"fedacg-beta": 0.5}
    ),
    "FedDyn": Case(
        FedDyn, FLFAFedDyn, {"num_clients": NODES, "alpha": 0.5}, {"feddyn-alpha": 0.5}
    ),
    "Scaffold": Case(
        Scaffold, FLFAScaffold, {"num_clients": NODES, "global_learning_rate": 0.5}, {}
    ),
    "FedProx": Case(FedProx, FLFAFedProx, {"proximal_mu": 0.25}, {"proximal-mu": 0.25}),
    "MOON": Case(
        MOON,
        FLFAMOON,
        {"mu": 2.5, "temperature": 0.25},
        {"moon-mu": 2.5, "moon-temperature": 0.25},
    ),
    "FedSOL": Case(
        FedSOL,
        FLFAFedSOL,
        {"rho": 0.25, "variant": "fixed", "part": "head"},
        {"fedsol-rho": 0.25, "fedsol-variant": "fixed", "fedsol-part": "head"},
    ),
    "FedRS": Case(
        FedRS,
        FLFAFedRS,
        {"alpha": 0.25, "variant": "soft"},
        {"fedrs-alpha": 0.25, "fedrs-variant": "soft"},
    ),
    "FedLC": Case(FedLC, FLFAFedLC, {"tau": 0.25}, {"fedlc-tau": 0.25}),
}
ONLY_CONFIG = ("FedProx", "MOON", "FedSOL", "FedRS", "FedLC")
CHANGE_THE_SERVER = tuple(name for name in METHODS if name not in ONLY_CONFIG)


def weights(dtype: Any = np.float32, only: tuple[str, ...] | None = None) -> Any:
    """Parameters and buffers by turns, not in the order of the alphabet."""
    rng = np.random.default_rng(11)
    arrays = {
        "stem.weight": rng.normal(size=(2, 3)).astype(dtype),
        "stem.running_var": rng.uniform(1, 2, size=2).astype(np.float32),
        "stem.count": np.int64(1000),
        "fc.weight": rng.normal(size=5).astype(dtype),
        "a.bias": rng.normal(size=3).astype(dtype),
    }
    return record({k: v for k, v in arrays.items() if only is None or k in only})


def client(message: Message) -> RecordDict:
    """``noisy_client`` as in torch: counters stay integers; with a step length."""
    reply = noisy_client(message)
    if message.metadata.message_type == MessageType.TRAIN:
        counters = {"stem.count": np.int64}
        reply["arrays"] = record(
            {
                name: values.astype(counters.get(name, values.dtype))
                for name, values in ndarrays(reply["arrays"]).items()
            }
        )
        reply["metrics"]["step-length"] = 0.25 * message.metadata.dst_node_id
    return reply


def planned(plan: Mapping[int, Mapping[str, Any]]) -> Client:
    """``plan_client`` with a step length of 1."""
    inner = plan_client(plan)

    def with_length(message: Message) -> Answer:
        got = inner(message)
        if not isinstance(got, Error):
            got["metrics"]["step-length"] = 1.0
        return got

    return with_length


def node_of(message: Message) -> int:
    return message.metadata.dst_node_id


def drive(
    strategy: Strategy, grid: FakeGrid, arrays: ArrayRecord, rounds: int, first: int = 1
) -> Iterator[tuple[int, ArrayRecord]]:
    """Do what Flower's loop does; stop after each round, with the global model.

    Replies come in the order of the nodes: sums are rounded alike in every run.
    """
    for server_round in range(first, rounds + 1):
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(sorted(messages, key=node_of))
        new, _ = strategy.aggregate_train(server_round, replies)
        arrays = arrays if new is None else new
        yield server_round, arrays


def sent_in(grid: FakeGrid, server_round: int) -> dict[str, np.ndarray]:
    """The model of a round's messages, which must all carry the same."""
    messages = grid.train_messages(server_round)
    first, *others = [bits(message.content["arrays"]) for message in messages]
    assert all(other == first for other in others)
    return ndarrays(messages[0].content["arrays"])


def replies_in(grid: FakeGrid, count: int) -> list[dict[str, np.ndarray]]:
    """The models of the last so many replies."""
    return [ndarrays(r.content["arrays"]) for r in grid.replied[-count:]]


def assert_close(got: Any, want: Any, digits: float) -> None:
    """Compare arrays, to a tolerance relative to the largest number in sight."""
    assert set(got) == set(want)
    for name in want:
        largest = float(np.abs(want[name]).max())
        np.testing.assert_allclose(
            got[name], want[name], rtol=0, atol=digits * largest, err_msg=name
        )


def frozen(value: Any) -> Any:
    """Everything of a strategy's state that can differ, comparable with ``==``."""
    if isinstance(value, ArrayRecord):
        return bits(value)
    if isinstance(value, np.ndarray | np.generic):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, dict):
        return [(key, frozen(entry)) for key, entry in value.items()]
    return repr(value)


def state_of(strategy: Any) -> Any:
    # Not a state: no later round depends on the last round's result.
    return frozen({k: v for k, v in vars(strategy).items() if k != "last_aggregate"})
