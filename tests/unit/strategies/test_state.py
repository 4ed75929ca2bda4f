"""The state of a strategy between rounds: saved and loaded without loss."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from flfa_app.methods import ALGORITHMS
from strategies import FLFAFedAdam, FLFAFedAvgM, LayerSelection, ServerState
from tests.federation import default_keys
from tests.unit.strategies.fakes import Answer, Client, FakeGrid, bits, ndarrays, record
from tests.unit.strategies.methods.cases import (
    LAYERS,
    NODES,
    PARAMETERS,
    client,
    drive,
    frozen,
    node_of,
    weights,
)

ROUNDS = 4
ALL = pytest.mark.parametrize("name", ALGORITHMS)
# Flower's strategies with a state; they are not among the app's methods.
FLOWERS = {
    "FedAvgM": (FLFAFedAvgM, {"server_momentum": 0.9}),
    "FedAdam": (FLFAFedAdam, {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.9}),
}


def build(name: str, rule: str = "lowest") -> LayerSelection:
    known = {"parameters": PARAMETERS, "num_clients": NODES}
    selection = {"layers": LAYERS, "rule": rule, "selection_seed": 3}
    return ALGORITHMS[name].build_strategy(default_keys(), known, **selection)


def rounds(
    strategy: LayerSelection, grid: FakeGrid, arrays: ArrayRecord, numbers: range
) -> Iterator[ArrayRecord]:
    """Do what Flower's loop does in these rounds; yield the model after each."""
    for _, model in drive(strategy, grid, arrays, numbers.stop - 1, numbers.start):
        yield model


def on_disk(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays that were written to bytes and read: they are read-only."""
    files = {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}
    return {k: np.frombuffer(c, t).reshape(s) for k, (t, s, c) in files.items()}


def from_checkpoint(state: ServerState) -> ServerState:
    """Return a state that was saved and loaded."""
    values = json.loads(json.dumps(state.values, allow_nan=False))
    return ServerState(on_disk(state.arrays), values)


def model_from_checkpoint(arrays: ArrayRecord) -> ArrayRecord:
    return ArrayRecord({k: Array(a) for k, a in on_disk(ndarrays(arrays)).items()})


def sent_in(grid: FakeGrid, server_round: int) -> list[Any]:
    """Return everything that was sent to the clients in a round, bit for bit."""

    def content(message: Message) -> Any:
        arrays = {k: bits(a) for k, a in message.content.array_records.items()}
        configs = {k: dict(c) for k, c in message.content.config_records.items()}
        return node_of(message), arrays, configs

    return [content(message) for message in grid.train_messages(server_round)]


def whole_and_resumed(
    build_one: Any, answers: Client, after: int
) -> tuple[list[Any], list[Any]]:
    """Return later messages, models and states, without and with a resumption."""
    outcomes = []
    for is_resumed in (False, True):
        strategy, grid = build_one(), FakeGrid(NODES, answers)
        *_, arrays = rounds(strategy, grid, weights(), range(1, after + 1))
        if is_resumed:
            state = from_checkpoint(strategy.server_state())
            arrays = model_from_checkpoint(arrays)
            strategy, grid = build_one(), FakeGrid(NODES, answers)
            strategy.load_server_state(state)
        later = range(after + 1, ROUNDS + 1)
        models = [bits(a) for a in rounds(strategy, grid, arrays, later)]
        messages = [sent_in(grid, server_round) for server_round in later]
        outcomes.append([messages, models, frozen(strategy.server_state()._asdict())])
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize(
    ("name", "rule", "after"),
    [
        *((name, "auto", 2) for name in ALGORITHMS),
        ("scaffold", "random", 3),
    ],
)
def test_a_resumed_run_is_the_same(name: str, rule: str, after: int) -> None:
    """The same messages, models and states, bit for bit."""
    whole, resumed = whole_and_resumed(lambda: build(name, rule), client, after)
    assert resumed == whole
    models = whole[1]
    assert len({str(model) for model in models}) == ROUNDS - after


@ALL
def test_the_state_is_needed(name: str) -> None:
    """Without it the next round differs, if the method has a state.

    The arrays that are sent or the new model differ; the layers are not compared.
    """
    strategy = build(name)
    *_, arrays = rounds(strategy, FakeGrid(NODES, client), weights(), range(1, 4))
    state = strategy.server_state()
    assert set(state.values["layer-selection"]["scores"]) == set(LAYERS)
    groups = {entry.split("/")[0] for entry in state.arrays}
    assert groups == set(getattr(strategy, "state_names", ()))
    outcomes = []
    for one in (strategy, build(name)):
        grid = FakeGrid(NODES, client)
        model = next(rounds(one, grid, model_from_checkpoint(arrays), range(4, 5)))
        sent = [records for _, records, _ in sent_in(grid, 4)]
        outcomes.append((sent, bits(model)))
    assert (outcomes[0] != outcomes[1]) == bool(groups)


@ALL
def test_a_state_is_not_shared(name: str) -> None:
    """Later rounds do not change a state that was saved."""
    grid = FakeGrid(NODES, client)
    strategy = build(name)
    *_, arrays = rounds(strategy, grid, weights(), range(1, 3))
    state = from_checkpoint(strategy.server_state())
    before = frozen(state._asdict())
    other = build(name)
    other.load_server_state(state)
    for _ in rounds(other, grid, arrays, range(3, 5)):
        pass
    assert frozen(state._asdict()) == before
    assert frozen(from_checkpoint(strategy.server_state())._asdict()) == before


@pytest.mark.parametrize("name", ["fedavg", "fedacg", "scaffold"])
def test_a_state_of_before_the_first_round(name: str) -> None:
    strategy = build(name)
    strategy.load_server_state(from_checkpoint(build(name).server_state()))
    models = [
        [bits(a) for a in rounds(one, FakeGrid(NODES, client), weights(), range(1, 3))]
        for one in (strategy, build(name))
    ]
    assert models[0] == models[1]


def without_fc(message: Message) -> Answer:
    """Train, but leave a layer as it was: it has no score."""
    reply = client(message)
    old = ndarrays(message.content["arrays"])
    new = ndarrays(reply["arrays"])
    reply["arrays"] = record({**new, "fc.weight": old["fc.weight"]})
    return reply


def test_a_layer_without_score() -> None:
    """nan is null in JSON, and nan again when it is loaded."""
    strategy = build("fedavg")
    list(rounds(strategy, FakeGrid(NODES, without_fc), weights(), range(1, 2)))
    state = strategy.server_state()
    assert state.values["layer-selection"]["scores"]["fc"] is None
    other = build("fedavg")
    other.load_server_state(from_checkpoint(state))
    for scores in (other.scores, other.first_scores):
        assert list(scores) == LAYERS
        assert math.isnan(scores["fc"])
        assert scores["stem"] == strategy.scores["stem"]
    assert other.selected == strategy.selected
    # ``auto`` decides by the first scored round, which may be before or after.
    whole, resumed = whole_and_resumed(lambda: build("fedavg", "auto"), without_fc, 2)
    assert resumed == whole


@pytest.mark.parametrize("name", FLOWERS)
def test_a_resumed_run_with_flowers_own_optimisers(name: str) -> None:
    """Momentum and moments are part of the state, though they are Flower's."""
    cls, own = FLOWERS[name]

    def new() -> LayerSelection:
        return cls(layers=LAYERS, **own)

    assert new().server_state().arrays == {}
    whole, resumed = whole_and_resumed(new, client, 2)
    assert resumed == whole
