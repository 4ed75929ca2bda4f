"""``class Mine(LayerSelection, X)`` for Flower's strategies and for one's own."""

import gc
import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from strategies import FA_LAYERS, LayerSelection
from tests.unit.strategies.fakes import (
    FakeGrid,
    bits,
    noisy_client,
    plan_client,
    record,
    start,
)

BASES = {
    "FedAvg": {},
    "FedAvgM": {"server_momentum": 0.5},
    "FedProx": {"proximal_mu": 0.25},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.25},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
    "Bulyan": {},
    "FedAdagrad": {"eta": 0.1},
    "FedAdam": {"eta": 0.1},
    "FedYogi": {"eta": 0.1},
    "QFedAvg": {"client_learning_rate": 0.1, "train_loss_key": "train-loss"},
}
SAME = ((1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0))  # z = 1
OPPOSITE = ((1.0, 0.0), (-1.0, 0.0), (2.0, 0.0), (-2.0, 0.0))  # z = 0
CROSS = ((1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, 1.0))  # z = 1/sqrt2


@pytest.fixture(autouse=True, scope="module")
def _cheap_collections():
    """Bulyan and QFedAvg collect garbage after each reply: leave torch out of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def mine(base):
    return type("Mine", (LayerSelection, base), {})


def weights():
    rng = np.random.default_rng(5)
    return record(
        {
            name: rng.normal(size=size).astype(np.float32)
            for name, size in {"a.weight": (3, 2), "a.bias": 3, "b.weight": 7}.items()
        }
    )


@pytest.mark.parametrize("name", BASES)
def test_aggregates_as_the_base_bit_for_bit(name):
    base, kwargs = getattr(flower, name), BASES[name]
    want, want_history = start(base(**kwargs), FakeGrid(5, noisy_client), weights(), 3)
    strategy = mine(base)(layers=["a", "b"], **kwargs)
    grid = FakeGrid(5, noisy_client)
    got, got_history = start(strategy, grid, weights(), 3)
    assert got_history == want_history
    assert len({str(entry) for entry in want_history}) == 4
    assert bits(got.arrays) == bits(want.arrays)
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    assert len(want.train_metrics_clientapp) == 3


@pytest.mark.parametrize("name", BASES)
def test_chooses_from_all_valid_replies(name):
    """Scores 1, 0, 1/sqrt2 by hand, whatever the base makes of the replies.

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

    strategy = mine(getattr(flower, name))(
        layers=["a", "b", "c"], num_layers=2, **BASES[name]
    )
    grid = FakeGrid(4, client)
    start(strategy, grid, arrays, 2)
    assert strategy.first_scores == {
        "a": 1.0,
        "b": 0.0,
        "c": pytest.approx(1 / math.sqrt(2), rel=1e-12),
    }
    assert [grid.fa_layers(1), grid.fa_layers(2)] == [[], ["b", "c"]]


def test_fedprox_still_sends_its_proximal_term():
    strategy = mine(flower.FedProx)(layers=["a", "b"], proximal_mu=0.25)
    grid = FakeGrid(3, noisy_client)
    start(strategy, grid, weights(), 2, {"lr": 0.5})
    assert grid.fa_layers(1) == []
    assert grid.fa_layers(2) in (["a"], ["b"])
    for server_round in (1, 2):
        for message in grid.train_messages(server_round):
            config = dict(message.content["config"])
            del config[FA_LAYERS]
            assert config == {
                "lr": 0.5,
                "proximal-mu": 0.25,
                "server-round": server_round,
            }


class OwnConfig(FedAvg):
    """Ignore the config that is handed in."""

    def configure_train(self, server_round, arrays, config, grid):
        own = ConfigRecord({"mine": 1})
        return super().configure_train(server_round, arrays, own, grid)


class NoConfig(FedAvg):
    """Send no config at all, and from a generator."""

    def configure_train(self, server_round, arrays, config, grid):
        for node in grid.get_node_ids():
            yield Message(RecordDict({self.arrayrecord_key: arrays}), node, "train")


class ConfigOfEachClient(FedAvg):
    """Send each client something else."""

    def configure_train(self, server_round, arrays, config, grid):
        for node in grid.get_node_ids():
            own = ConfigRecord({**config, "server-round": server_round, "node": node})
            content = RecordDict({self.arrayrecord_key: arrays, "config": own})
            yield Message(content, node, "train")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (OwnConfig, [{"mine": 1, "server-round": 4}] * 2),
        (NoConfig, [{}, {}]),
        (
            ConfigOfEachClient,
            [{"lr": 0.5, "server-round": 4, "node": n} for n in (1, 2)],
        ),
    ],
)
def test_a_base_with_a_config_of_its_own(base, expected):
    kwargs = {"layers": ["a", "b"], "rule": "fixed", "fixed_layers": ["b", "a"]}
    strategy = mine(base)(**kwargs)
    grid = FakeGrid(2, noisy_client)
    messages = strategy.configure_train(4, weights(), ConfigRecord({"lr": 0.5}), grid)
    configs = [dict(message.content["config"]) for message in messages]
    assert configs == [{**config, FA_LAYERS: ["b", "a"]} for config in expected]


class LearningRateDecay(FedAvg):
    """As in Flower's guide "Send config to ClientApps", but every round."""

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)


def test_a_base_that_keeps_its_state_in_the_config():
    """lr 1/2, 1/4, 1/8 by hand, with Flower alone and therefore with FLFA."""
    rates = []
    for strategy in (LearningRateDecay(), mine(LearningRateDecay)(layers=["a"])):
        grid = FakeGrid(2, noisy_client)
        start(strategy, grid, weights(), 3, {"lr": 1.0})
        rates.append(
            [grid.train_messages(r)[0].content["config"]["lr"] for r in (1, 2, 3)]
        )
    assert rates[0] == [0.5, 0.25, 0.125]
    assert rates[1] == rates[0]


def test_two_levels_of_inheritance():
    class Third(mine(flower.FedProx)):
        def __init__(self, *, extra, **kwargs):
            super().__init__(**kwargs)
            self.extra = extra

    strategy = Third(layers=["a", "b"], proximal_mu=0.5, extra=3)
    grid = FakeGrid(2, noisy_client)
    start(strategy, grid, weights(), 2)
    assert (strategy.extra, strategy.proximal_mu) == (3, 0.5)
    assert grid.fa_layers(2) in (["a"], ["b"])


def test_names_a_base_may_have_taken():
    """A seed and a private ``_sent`` of its own are common, and stay the base's."""

    class Seeded(flower.FedAvg):
        def __init__(self, *, seed, **kwargs):
            super().__init__(**kwargs)
            self.seed, self._sent = seed, "mine"

    strategy = mine(Seeded)(layers=["a", "b"], seed=7)
    grid = FakeGrid(2, noisy_client)
    start(strategy, grid, weights(), 2)
    assert (strategy.seed, strategy._sent) == (7, "mine")
    assert grid.fa_layers(2) in (["a"], ["b"])
