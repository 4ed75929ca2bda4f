"""What holds for every method: messages, buffers, failures, and the limit FedAvg."""

from functools import cache

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType
from flwr.serverapp.strategy import FedAvg

from clients import LocalTrainer, TrainSettings
from flfa_app.methods import ALGORITHMS
from strategies import FA_LAYERS
from strategies.methods.scaffold import STEP_LENGTH
from tests.unit.strategies.fakes import (
    FakeGrid,
    bits,
    ndarrays,
    over_the_wire,
    record,
    start,
)
from tests.unit.strategies.methods.cases import (
    BUFFERS,
    CHANGE_THE_SERVER,
    METHODS,
    NODES,
    ONLY_CONFIG,
    PARAMETERS,
    client,
    drive,
    node_of,
    planned,
    sent_in,
    state_of,
    weights,
)
from tests.unit.strategies.methods.torch_client import data_of, network

ROUNDS = 3
SOME = {"fraction_train": 0.5, "fraction_evaluate": 0.7}
EVERY = pytest.mark.parametrize("name", METHODS)
# One of each kind of server step; MOON stands for those that only configure clients.
KINDS = ("dampened", "FedACG", "FedDyn", "Scaffold", "FedProx", "MOON")
EVERY_KIND = pytest.mark.parametrize("name", KINDS)


def run(strategy, nodes=client, arrays=None, rounds=ROUNDS):
    grid = FakeGrid(NODES, nodes)
    arrays = weights() if arrays is None else arrays
    result, history = start(strategy, grid, arrays, rounds, {"lr": 0.25})
    return result, history, grid


@cache
def fedavg():
    return run(FedAvg(**SOME))


def received(grid):
    """The node, the kind and the arrays of each message, in order."""
    return [
        (node_of(m), m.metadata.message_type, bits(m.content["arrays"]))
        for m in grid.received
    ]


# Messages


@cache
def train_configs(name, flfa=True):
    """The configs of all train messages of a run, and each round's layers."""
    grid = FakeGrid(2, client)
    strategy = METHODS[name].build(flfa=flfa, fraction_evaluate=0.0)
    start(strategy, grid, weights(), ROUNDS, {"lr": 0.125})
    layers = {r: grid.fa_layers(r) for r in range(1, ROUNDS + 1)} if flfa else {}
    return [dict(message.content["config"]) for message in grid.received], layers


@EVERY
@pytest.mark.parametrize("flfa", [False, True])
def test_the_config_of_every_train_message(name, flfa):
    """The method's options, the caller's config, the round and the layers."""
    configs, layers = train_configs(name, flfa)
    assert configs == [
        {
            **METHODS[name].sent,
            "lr": 0.125,
            "server-round": r,
            **({FA_LAYERS: layers[r]} if flfa else {}),
        }
        for r in range(1, ROUNDS + 1)
        for _ in range(2)
    ]
    assert [len(names) for names in layers.values()] == ([0, 1, 1] if flfa else [])


def test_the_config_is_complete_when_each_round_has_a_new_one():
    """Flower's loop passes one record again and again; the app passes new ones."""
    grid = FakeGrid(2, client)
    list(drive(METHODS["FedACG"].build(), grid, weights(), ROUNDS))
    for server_round in range(1, ROUNDS + 1):
        for message in grid.train_messages(server_round):
            want = {**METHODS["FedACG"].sent, "server-round": server_round}
            assert dict(message.content["config"]) == want


class WatchedConfig(dict):
    """A config that records which keys are read."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


@EVERY
def test_the_trainer_reads_exactly_what_the_strategy_sends(name):
    trainers = {method.strategy: method.trainer for method in ALGORITHMS.values()}
    configs, _ = train_configs(name)
    trainer = trainers[METHODS[name].flfa](
        network(), TrainSettings(epochs=1, batch_size=4)
    )
    assert isinstance(trainer, LocalTrainer)
    trainer.config = WatchedConfig(configs[-1])
    metrics = trainer.fit(*data_of(1))
    assert trainer.config.read == set(METHODS[name].sent)
    assert (STEP_LENGTH in metrics) == (name == "Scaffold")


# FedAvg as a limit

STILL = {"server_momentum": 0.0, "server_learning_rate": 1.0}
NEUTRAL = {
    "dampened": STILL,
    "nesterov": STILL,
    "FedACG": {"lookahead": 0.0},  # only the clients use beta
    **{name: {} for name in ONLY_CONFIG},  # the server is FedAvg's for all options
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_options_are_fedavg_bit_for_bit(name):
    """The same arrays are returned, sent, evaluated and measured."""
    want, want_history, want_grid = fedavg()
    strategy = METHODS[name].build(flfa=True, **NEUTRAL[name], **SOME)
    got, got_history, got_grid = run(strategy)
    assert bits(got.arrays) == bits(want.arrays)
    assert got_history == want_history
    assert received(got_grid) == received(want_grid)
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    assert got.evaluate_metrics_clientapp == want.evaluate_metrics_clientapp
    assert len({str(entry) for entry in want_history}) == ROUNDS + 1, "nothing trained"


@pytest.mark.parametrize("name", ["dampened", "nesterov", "FedACG", "MOON"])
def test_neutral_options_keep_the_sign_of_zero(name):
    """Clients that change nothing keep -0, although -0 + 0 m would be +0."""
    first = record({"stem.weight": np.array([-0.0]), "fc.weight": np.array([-0.0])})
    grid = FakeGrid(2, planned({r: {"fc.weight": (-0.0, -0.0)} for r in (1, 2, 3)}))
    strategy = METHODS[name].build(flfa=True, **NEUTRAL[name])
    for server_round, arrays in drive(strategy, grid, first, 3):
        assert bits(arrays) == bits(first)
        for message in grid.train_messages(server_round):
            assert bits(message.content["arrays"]) == bits(first)


def test_scaffold_with_equal_clients_is_fedavg():
    """n/(n + ... + n) and 1/K are both the double nearest to 1/K: the same weights.

    These clients never look at the control variate, so it holds in all rounds.
    """

    def equal(message):
        reply = client(message)
        reply["metrics"]["num-examples"] = 12
        return reply

    want, want_history, _ = run(FedAvg(**SOME), equal)
    strategy = METHODS["Scaffold"].build(flfa=True, global_learning_rate=1.0, **SOME)
    got, got_history, _ = run(strategy, equal)
    assert got_history == want_history
    assert got.train_metrics_clientapp == want.train_metrics_clientapp


@EVERY
def test_flfa_adds_nothing_but_the_layers(name):
    """These clients ignore the layers, so ``FLFAX`` must give what ``X`` gives."""
    case = METHODS[name]
    want, want_history, want_grid = run(case.build(**SOME))
    got, got_history, got_grid = run(case.build(flfa=True, **SOME))
    assert got_history == want_history
    assert received(got_grid) == received(want_grid)
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    for message in got_grid.received:
        train = message.metadata.message_type == MessageType.TRAIN
        assert (FA_LAYERS in message.content["config"]) == train


@pytest.mark.parametrize("name", ["dampened", "FedACG", "FedDyn", "Scaffold"])
def test_the_returned_model_is_evaluated(name):
    """On the server and on the clients: a look-ahead is for training only."""
    _, history, grid = run(METHODS[name].build())
    evaluated = [
        bits(message.content["arrays"])
        for message in grid.received
        if message.metadata.message_type == MessageType.EVALUATE
    ]
    assert evaluated == [entry for entry in history[1:] for _ in range(NODES)]


# Buffers


def buffers(history):
    return [[row for row in entry if row[0] in BUFFERS] for entry in history]


@EVERY_KIND
def test_buffers_are_fedavgs(name):
    """Weighted by the samples, also where all clients have the same weight."""
    _, want, want_grid = fedavg()
    _, got, got_grid = run(METHODS[name].build(flfa=True, **SOME))
    assert buffers(got) == buffers(want)
    assert len({str(entry) for entry in buffers(want)}) == ROUNDS + 1
    for server_round in range(1, ROUNDS + 1):
        sent, expected = (sent_in(g, server_round) for g in (got_grid, want_grid))
        for buffer in BUFFERS:
            assert sent[buffer].tobytes() == expected[buffer].tobytes()


@pytest.mark.parametrize("name", CHANGE_THE_SERVER)
def test_parameters_are_found_without_their_names(name):
    """Neither statistics nor counters are taken for parameters."""
    histories = [
        run(METHODS[name].build(parameters=names, **SOME))[1]
        for names in (None, PARAMETERS)
    ]
    assert histories[0] == histories[1]


@EVERY_KIND
def test_types_shapes_and_order_stay(name):
    """Of the arrays that are returned and sent, and of the server's state."""
    first = weights(np.float16)
    strategy = METHODS[name].build(flfa=True, **SOME)
    result, history, grid = run(strategy, arrays=first)
    sent = [bits(message.content["arrays"]) for message in grid.received]
    for entry in [*history, *sent]:
        assert [key for key, *_ in entry] == list(first)
        for key, dtype, shape, _ in entry:
            assert shape == tuple(first[key].shape)
            assert key not in PARAMETERS or dtype == "float16"
    assert list(result.arrays) == list(first)
    for attribute in getattr(strategy, "state_names", ()):
        for key, values in getattr(strategy, attribute).items():
            assert key in PARAMETERS
            assert (values.dtype, values.shape) == ("float16", tuple(first[key].shape))


@EVERY_KIND
def test_a_parameter_without_dimensions(name):
    """NumPy makes scalars of such arrays, Flower needs arrays."""
    first = record({"fc.weight": np.ones(3, np.float32), "scale": np.float32(2)})
    names = {} if name == "FedProx" else {"parameters": ("fc.weight", "scale")}
    result, history, _ = run(METHODS[name].build(**names, **SOME), arrays=first)
    assert ndarrays(result.arrays)["scale"].shape == ()
    assert result.arrays["scale"].dtype == "float32"
    assert len({str(entry) for entry in history}) == ROUNDS + 1


# Failures


def after_one_round(name, flfa=True):
    """A strategy that has state, the model after its first round, and its grid."""
    strategy = METHODS[name].build(flfa=flfa)
    grid = FakeGrid(NODES, client)
    ((_, arrays),) = drive(strategy, grid, weights(), 1)
    return strategy, arrays, grid


def configure(strategy, arrays, grid):
    messages = strategy.configure_train(2, arrays, ConfigRecord(), grid)
    return sorted(messages, key=node_of)


def errors_to(messages):
    reason = Error(code=1, reason="out of memory")
    return [over_the_wire(Message(reason, reply_to=m)) for m in messages]


@EVERY_KIND
@pytest.mark.parametrize("flfa", [False, True])
def test_failed_replies_are_left_out(name, flfa):
    """As if they had not arrived, at any position, from an iterator."""
    outcomes = []
    for failing in (False, True):
        strategy, arrays, grid = after_one_round(name, flfa)
        messages = configure(strategy, arrays, grid)
        good = list(grid.send_and_receive(messages[1:-1]))
        bad = errors_to([messages[0], messages[-1]]) if failing else []
        replies = [*bad[:1], good[0], *bad[1:], *good[1:]]
        new, metrics = strategy.aggregate_train(2, iter(replies))
        outcomes.append((bits(new), dict(metrics), state_of(strategy)))
    assert outcomes[0] == outcomes[1]


@EVERY_KIND
@pytest.mark.parametrize("kind", ["errors", "silence"])
def test_a_round_without_valid_replies_changes_nothing(name, kind):
    strategy, arrays, grid = after_one_round(name)
    messages = configure(strategy, arrays, grid)
    before = state_of(strategy)
    replies = errors_to(messages) if kind == "errors" else []
    assert strategy.aggregate_train(2, replies) == (None, None)
    assert state_of(strategy) == before
