"""What the clients are told: the keys their trainers read, in every train message."""

from functools import cache

import pytest

from clients import LocalTrainer, TrainSettings
from clients.methods.fedacg import FedACGTrainer
from clients.methods.feddyn import FedDynTrainer
from clients.methods.fedlc import FedLCTrainer
from clients.methods.fedprox import FedProxTrainer
from clients.methods.fedrs import FedRSTrainer
from clients.methods.fedsol import FedSOLTrainer
from clients.methods.moon import MOONTrainer
from clients.methods.scaffold import ScaffoldTrainer
from strategies import FA_LAYERS
from strategies.methods.scaffold import STEP_LENGTH
from tests.unit.strategies.fakes import FakeGrid, start
from tests.unit.strategies.methods.cases import METHODS, client, drive, weights
from tests.unit.strategies.methods.torch_client import data_of, network

ROUNDS = 3
TRAINERS = {
    "FedACG": FedACGTrainer,
    "FedDyn": FedDynTrainer,
    "Scaffold": ScaffoldTrainer,
    "FedProx": FedProxTrainer,
    "MOON": MOONTrainer,
    "FedSOL": FedSOLTrainer,
    "FedRS": FedRSTrainer,
    "FedLC": FedLCTrainer,
}


@cache
def configs_of(name, flfa=True):
    """The configs of all train messages of a run, and each round's layers."""
    grid = FakeGrid(2, client)
    strategy = METHODS[name].build(flfa=flfa, fraction_evaluate=0.0)
    start(strategy, grid, weights(), ROUNDS, {"lr": 0.125})
    layers = {r: grid.fa_layers(r) for r in range(1, ROUNDS + 1)} if flfa else {}
    return [dict(message.content["config"]) for message in grid.received], layers


@pytest.mark.parametrize("name", METHODS)
def test_in_every_train_message(name):
    """The settings, the caller's own, the round and the layers, and nothing else."""
    case = METHODS[name]
    configs, layers = configs_of(name)
    assert configs == [
        {**case.sent, "lr": 0.125, "server-round": r, FA_LAYERS: layers[r]}
        for r in range(1, ROUNDS + 1)
        for _ in range(2)
    ]
    assert layers[1] == []
    assert all(len(layers[r]) == 1 for r in range(2, ROUNDS + 1))


@pytest.mark.parametrize("name", METHODS)
def test_without_flfa_too(name):
    case = METHODS[name]
    configs, _ = configs_of(name, flfa=False)
    assert configs == [
        {**case.sent, "lr": 0.125, "server-round": r}
        for r in range(1, ROUNDS + 1)
        for _ in range(2)
    ]


@pytest.mark.parametrize("name", METHODS)
def test_with_a_new_config_each_round(name):
    """Flower's loop hands in one record again and again; the app's a new one."""
    grid = FakeGrid(2, client)
    list(drive(METHODS[name].build(), grid, weights(), ROUNDS))
    for server_round in range(1, ROUNDS + 1):
        for message in grid.train_messages(server_round):
            want = {**METHODS[name].sent, "server-round": server_round}
            assert dict(message.content["config"]) == want


class Watched(dict):
    """A config that knows what was read from it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("name", METHODS)
def test_the_trainer_reads_what_the_strategy_sends(name):
    """All of it and nothing besides, when it trains with a message's own config."""
    trainer_class = TRAINERS.get(name, LocalTrainer)
    configs, _ = configs_of(name)
    trainer = trainer_class(network(), TrainSettings(epochs=1, batch_size=4))
    trainer.config = Watched(configs[-1])
    metrics = trainer.fit(*data_of(1))
    assert trainer.config.read == set(METHODS[name].sent)
    assert (STEP_LENGTH in metrics) == (name == "Scaffold")


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("FedACG", "strength", 0.5),
        ("FedDyn", "alpha", 0.5),
        ("FedProx", "strength", 0.25),
        ("MOON", "mu", 2.5),
        ("MOON", "temperature", 0.25),
        ("FedSOL", "rho", 0.25),
        ("FedSOL", "adaptive", False),
        ("FedSOL", "head_only", True),
        ("FedRS", "alpha", 0.25),
        ("FedRS", "variant", "soft"),
        ("FedLC", "tau", 0.25),
    ],
)
def test_the_trainer_takes_the_value(name, attribute, value):
    configs, _ = configs_of(name)
    trainer = TRAINERS[name](network(), TrainSettings(), configs[0])
    trainer.begin(*data_of(1))
    assert getattr(trainer, attribute) == value
