"""FLFA on Flower's strategies and on a user's own: only the config may change."""

import gc
import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from strategies import FA_LAYERS, FLFAFedAdam, FLFAFedAvg, FLFAFedAvgM, LayerSelection
from tests.unit.strategies.fakes import (
    FakeGrid,
    bits,
    noisy_client,
    plan_client,
    record,
    start,
)

ARGUMENTS = {
    "FedAvg": {},
    "FedAvgM": {"server_learning_rate": 0.5, "server_momentum": 0.9},
    "FedProx": {"proximal_mu": 0.25},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.25},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
    "Bulyan": {},
    "FedAdagrad": {"eta": 0.1},
    "FedAdam": {"eta": 0.03, "beta_1": 0.8, "tau": 1e-2},
    "FedYogi": {"eta": 0.1},
    "QFedAvg": {"client_learning_rate": 0.1, "train_loss_key": "train-loss"},
}
RULES = {
    "none": {"layers": [], "rule": "none"},
    "lowest": {"layers": ["conv", "fc"], "rule": "lowest"},
    "auto": {"layers": ["conv", "fc"], "rule": "auto", "observed_layers": ["half"]},
    "random": {"layers": ["conv", "fc"], "rule": "random", "num_layers": 2},
}
ROUNDS = 3


@pytest.fixture(autouse=True, scope="module")
def _cheap_collections():
    """Bulyan and QFedAvg collect garbage after each reply: leave torch out of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def with_flfa(base):
    return type("Mine", (LayerSelection, base), {})


def weights():
    rng = np.random.default_rng(11)
    return record(
        {
            "conv.weight": rng.normal(size=(4, 3, 3)).astype(np.float32),
            "conv.bias": rng.normal(size=4).astype(np.float32),
            "norm.running_mean": rng.normal(size=4),
            "half.weight": rng.normal(size=(2, 5)).astype(np.float16),
            "fc.weight": rng.normal(size=(2, 5)).astype(np.float32),
            "scale": np.float32(rng.normal()),
        }
    )


def run(strategy):
    """Return everything that a run yields, and the messages of a grid."""
    grid = FakeGrid(6, noisy_client)
    result, history = start(strategy, grid, weights(), ROUNDS, {"lr": 0.25})
    messages = [
        (
            message.metadata.dst_node_id,
            message.metadata.message_type,
            list(message.content),
            bits(message.content["arrays"]),
            {k: v for k, v in message.content["config"].items() if k != FA_LAYERS},
        )
        for message in grid.received
    ]
    optimiser = {}
    for name in ("momentum_vector", "m_t", "v_t"):
        value = getattr(strategy, name, None)
        arrays = value.values() if isinstance(value, dict) else value or ()
        optimiser[name] = [array.tobytes() for array in arrays]
    return {
        "history": history,
        "arrays": bits(result.arrays),
        "train metrics": result.train_metrics_clientapp,
        "evaluate metrics": result.evaluate_metrics_clientapp,
        "messages": messages,
        "optimiser": optimiser,
    }


@pytest.mark.parametrize(
    ("base", "flfa", "rule"),
    [
        *(("FedAvg", FLFAFedAvg, rule) for rule in RULES),
        ("FedAvgM", FLFAFedAvgM, "auto"),
        ("FedAdam", FLFAFedAdam, "auto"),
        *((base, None, "lowest") for base in ARGUMENTS),
    ],
)
def test_everything_but_the_layers_is_flowers_own_bit_for_bit(base, flfa, rule):
    """These clients ignore the layers, so every rule must give the same.

    Not all nodes take part, so the sampling must be the same too.
    """
    plain = getattr(flower, base)
    arguments = {**ARGUMENTS[base], "fraction_train": 0.9, "fraction_evaluate": 0.7}
    want = run(plain(**arguments))
    strategy = (flfa or with_flfa(plain))(**arguments, **RULES[rule])
    assert run(strategy) == want
    history = {str(entry) for entry in want["history"]}
    assert len(history) == ROUNDS + 1, "each round changes the model"
    assert len(want["train metrics"]) == len(want["evaluate metrics"]) == ROUNDS
    counts = [len(arrays) for arrays in want["optimiser"].values()]
    assert flfa is None or counts == {"FedAvgM": [6, 0, 0], "FedAdam": [0, 6, 6]}.get(
        base, [0, 0, 0]
    )


SAME = ((1.0, 0.0),) * 4  # z = 1
OPPOSITE = ((1.0, 0.0), (-1.0, 0.0), (2.0, 0.0), (-2.0, 0.0))  # z = 0
CROSS = ((1.0, 0.0), (0.0, 1.0)) * 2  # z = 1/sqrt2


@pytest.mark.parametrize("name", ARGUMENTS)
def test_layers_are_scored_by_all_valid_replies(name):
    """Scores 1, 0, 1/sqrt2 by hand, whatever the base does with the replies.

    Krum, say, takes one client only, whose agreement with itself would be 1.
    """
    zeros = np.zeros(2, np.float32)
    arrays = record({"a.weight": zeros, "b.weight": zeros, "c.weight": zeros})
    updates = {"a.weight": SAME, "b.weight": OPPOSITE, "c.weight": CROSS}
    planned = plan_client({1: updates, 2: updates})

    def client(message):
        reply = planned(message)
        if message.metadata.message_type == MessageType.TRAIN:
            reply["metrics"]["train-loss"] = 1.0
        return reply

    strategy = with_flfa(getattr(flower, name))(
        layers=["a", "b", "c"], num_layers=2, **ARGUMENTS[name]
    )
    grid = FakeGrid(4, client)
    start(strategy, grid, arrays, 2)
    half = pytest.approx(1 / math.sqrt(2), rel=1e-12)
    assert strategy.first_scores == {"a": 1.0, "b": 0.0, "c": half}
    assert [grid.fa_layers(1), grid.fa_layers(2)] == [[], ["b", "c"]]


class OwnConfig(FedAvg):
    """Ignore the given config, and change its own in every round."""

    rate = 1.0

    def configure_train(self, server_round, arrays, config, grid):
        self.rate /= 2
        own = ConfigRecord({"rate": self.rate})
        return super().configure_train(server_round, arrays, own, grid)


class ConfigOfEachClient(FedAvg):
    """Send another config to each client, and none to the first; from a generator."""

    def configure_train(self, server_round, arrays, config, grid):
        for node in grid.get_node_ids():
            own = ConfigRecord({**config, "server-round": server_round, "node": node})
            records = {self.arrayrecord_key: arrays, "config": own}
            if node == 1:
                del records["config"]
            yield Message(RecordDict(records), node, "train")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (OwnConfig, [{"rate": 0.5, "server-round": 4}] * 2),
        (ConfigOfEachClient, [{}, {"lr": 0.5, "server-round": 4, "node": 2}]),
        (flower.FedProx, [{"lr": 0.5, "server-round": 4, "proximal-mu": 0.25}] * 2),
    ],
)
def test_a_base_with_a_config_of_its_own(base, expected):
    arguments = {"proximal_mu": 0.25} if base is flower.FedProx else {}
    strategy = with_flfa(base)(
        layers=["conv", "fc"], rule="fixed", fixed_layers=["fc", "conv"], **arguments
    )
    grid = FakeGrid(2, noisy_client)
    messages = strategy.configure_train(4, weights(), ConfigRecord({"lr": 0.5}), grid)
    configs = [dict(message.content["config"]) for message in messages]
    assert configs == [{**config, FA_LAYERS: ["fc", "conv"]} for config in expected]


def test_inheritance_over_two_levels_and_attributes_of_the_base():
    """A seed and a private ``_sent`` of a base are common, and stay the base's."""

    class Seeded(flower.FedProx):
        def __init__(self, *, seed, **base):
            super().__init__(**base)
            self.seed, self._sent = seed, "mine"

    class Third(with_flfa(Seeded)):
        def __init__(self, *, extra, **base):
            super().__init__(**base)
            self.extra = extra

    strategy = Third(layers=["conv", "fc"], proximal_mu=0.5, seed=7, extra=3)
    grid = FakeGrid(2, noisy_client)
    start(strategy, grid, weights(), 2)
    assert (strategy.extra, strategy.proximal_mu) == (3, 0.5)
    assert (strategy.seed, strategy._sent) == (7, "mine")
    assert grid.fa_layers(2) in (["conv"], ["fc"])
