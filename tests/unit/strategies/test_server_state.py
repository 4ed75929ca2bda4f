"""What a strategy carries from round to round: saved, loaded, and nothing is lost."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from flfa_app.methods import ALGORITHMS
from strategies import FLFAFedAdam, FLFAFedAvgM, LayerSelection, ServerState
from tests.federation import default_keys
from tests.unit.strategies.fakes import Answer, Client, FakeGrid, bits, ndarrays, record
from tests.unit.strategies.methods.cases import (
    LAYERS,
    NODES,
    PARAMETERS,
    client,
    frozen,
    node_of,
    weights,
)

ROUNDS = 5
ALL = pytest.mark.parametrize("name", ALGORITHMS)
# What Flower's strategies carry: these two alone, and it is not saved.
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
    """Do what Flower's loop does in these rounds; stop after each, with the model."""
    for server_round in numbers:
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(sorted(messages, key=node_of))
        new, _ = strategy.aggregate_train(server_round, replies)
        arrays = arrays if new is None else new
        yield arrays


def on_disk(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays as bytes and back: what is read is read-only."""
    files = {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}
    return {k: np.frombuffer(c, t).reshape(s) for k, (t, s, c) in files.items()}


def saved(state: ServerState) -> ServerState:
    """A state as a checkpoint keeps it."""
    values = json.loads(json.dumps(state.values, allow_nan=False))
    return ServerState(on_disk(state.arrays), values)


def kept(arrays: ArrayRecord) -> ArrayRecord:
    return ArrayRecord({k: Array(a) for k, a in on_disk(ndarrays(arrays)).items()})


def seen(grid: FakeGrid, server_round: int) -> list[Any]:
    """Everything the clients got in a round, bit for bit."""

    def content(message: Message) -> Any:
        arrays = {k: bits(a) for k, a in message.content.array_records.items()}
        configs = {k: dict(c) for k, c in message.content.config_records.items()}
        return node_of(message), arrays, configs

    return [content(message) for message in grid.train_messages(server_round)]


def whole_and_broken(
    build_one: Any, answers: Client, after: int
) -> tuple[list[Any], list[Any]]:
    """Messages, models and states after a break, without it and with it."""
    outcomes = []
    for broken in (False, True):
        strategy, grid = build_one(), FakeGrid(NODES, answers)
        *_, arrays = rounds(strategy, grid, weights(), range(1, after + 1))
        if broken:
            state, arrays = saved(strategy.server_state()), kept(arrays)
            strategy, grid = build_one(), FakeGrid(NODES, answers)
            strategy.load_server_state(state)
        later = range(after + 1, ROUNDS + 1)
        models = [bits(a) for a in rounds(strategy, grid, arrays, later)]
        messages = [seen(grid, server_round) for server_round in later]
        outcomes.append([messages, models, frozen(strategy.server_state()._asdict())])
    return outcomes[0], outcomes[1]


@ALL
@pytest.mark.parametrize(("rule", "after"), [("lowest", 1), ("auto", 3), ("random", 2)])
def test_a_break_changes_nothing(name: str, rule: str, after: int) -> None:
    """The same messages, models and states, bit for bit."""
    whole, broken = whole_and_broken(lambda: build(name, rule), client, after)
    assert broken == whole
    models = whole[1]
    assert len({str(model) for model in models}) == ROUNDS - after


@ALL
def test_what_is_saved_is_what_is_needed(name: str) -> None:
    """Without it the next round is another one, if the method carries anything.

    In what is sent or in the model that is made of it: the layers aside.
    """
    strategy = build(name)
    *_, arrays = rounds(strategy, FakeGrid(NODES, client), weights(), range(1, 4))
    state = strategy.server_state()
    assert set(state.values["layer-selection"]["scores"]) == set(LAYERS)
    carries = {entry.split("/")[0] for entry in state.arrays}
    assert carries == set(getattr(strategy, "state_names", ()))
    outcomes = []
    for one in (strategy, build(name)):
        grid = FakeGrid(NODES, client)
        model = next(rounds(one, grid, kept(arrays), range(4, 5)))
        sent = [records for _, records, _ in seen(grid, 4)]
        outcomes.append((sent, bits(model)))
    assert (outcomes[0] != outcomes[1]) == bool(carries)


@ALL
def test_a_state_is_not_shared(name: str) -> None:
    """What is done to the strategy later does not change what was saved."""
    grid = FakeGrid(NODES, client)
    strategy = build(name)
    *_, arrays = rounds(strategy, grid, weights(), range(1, 3))
    state = saved(strategy.server_state())
    before = frozen(state._asdict())
    other = build(name)
    other.load_server_state(state)
    for _ in rounds(other, grid, arrays, range(3, 5)):
        pass
    assert frozen(state._asdict()) == before
    assert frozen(saved(strategy.server_state())._asdict()) == before


@ALL
def test_before_the_first_round(name: str) -> None:
    """A run can be taken up where nothing has happened."""
    strategy = build(name)
    strategy.load_server_state(saved(build(name).server_state()))
    outcomes = [
        [bits(arrays) for arrays in rounds(x, FakeGrid(NODES, client), weights(), two)]
        for x, two in ((strategy, range(1, 3)), (build(name), range(1, 3)))
    ]
    assert outcomes[0] == outcomes[1]


def without_fc(message: Message) -> Answer:
    """Clients that leave a layer as it was: no score can be given to it."""
    reply = client(message)
    old = ndarrays(message.content["arrays"])
    new = ndarrays(reply["arrays"])
    reply["arrays"] = record({**new, "fc.weight": old["fc.weight"]})
    return reply


@ALL
def test_a_layer_without_score(name: str) -> None:
    """nan, which JSON has no word for, is nan again; the rule goes by it."""
    strategy = build(name)
    list(rounds(strategy, FakeGrid(NODES, without_fc), weights(), range(1, 2)))
    state = strategy.server_state()
    assert state.values["layer-selection"]["scores"]["fc"] is None
    other = build(name)
    other.load_server_state(saved(state))
    for scores in (other.scores, other.first_scores):
        assert list(scores) == LAYERS
        assert math.isnan(scores["fc"])
        assert scores["stem"] == strategy.scores["stem"]
    assert other.selected == strategy.selected


def test_a_break_after_rounds_without_a_score() -> None:
    """``auto`` waits for the first scored round, before and after a break."""
    whole, broken = whole_and_broken(lambda: build("fedavg", "auto"), without_fc, 2)
    assert broken == whole


@pytest.mark.parametrize("name", FLOWERS)
def test_flowers_own_optimisers_go_on(name: str) -> None:
    """Momentum and moments are part of the state, though they are Flower's."""
    cls, own = FLOWERS[name]

    def new() -> LayerSelection:
        return cls(layers=LAYERS, **own)

    assert new().server_state().arrays == {}
    whole, broken = whole_and_broken(new, client, 3)
    assert broken == whole
