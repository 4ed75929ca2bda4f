"""FedDyn: the server's H is the mean of the clients' dual variables."""

import numpy as np
import torch

from clients import TrainSettings
from clients.methods.feddyn import FedDynTrainer
from strategies.methods.feddyn import FedDyn
from tests.unit.strategies.fakes import FakeGrid, record
from tests.unit.strategies.methods.cases import (
    NODES,
    PARAMETERS,
    assert_close,
    client,
    drive,
    planned,
    replies_in,
    weights,
)
from tests.unit.strategies.methods.torch_client import TorchClient

ROUNDS = 5


def test_the_model_is_the_uniform_mean_plus_the_dual():
    """The nodes have 11 to 14 samples: the weighted mean is another one."""
    grid = FakeGrid(NODES, client)
    strategy = FedDyn(num_clients=NODES, parameters=PARAMETERS, fraction_train=0.5)
    for _, arrays in drive(strategy, grid, weights(np.float64), ROUNDS):
        replies = replies_in(grid, NODES // 2)
        mean = {k: np.mean([r[k] for r in replies], 0) for k in PARAMETERS}
        got = {k: arrays[k].numpy() for k in PARAMETERS}
        want = {k: mean[k] + strategy.dual[k] for k in PARAMETERS}
        assert_close(got, want, 1e-14)
        samples = [
            r.content["metrics"]["num-examples"] for r in grid.replied[-(NODES // 2) :]
        ]
        weighted = np.average([r["fc.weight"] for r in replies], 0, samples)
        assert np.abs(weighted - mean["fc.weight"]).max() > 1e-3


def test_two_rounds_by_hand():
    """N = 4, two clients, W = 0. Updates 1 and 3: the mean is 2, H = 4/4, W = 3.

    Updates -1 and 3 of it: the mean is 4, H = 1 + 2/4, W = 11/2. Exact in binary.
    """
    plan = {1: {"fc.weight": (1.0, 3.0)}, 2: {"fc.weight": (-1.0, 3.0)}}
    strategy = FedDyn(num_clients=4)
    first = record({"fc.weight": np.zeros(1)})
    seen = [
        (arrays["fc.weight"].numpy().item(), strategy.dual["fc.weight"].item())
        for _, arrays in drive(strategy, FakeGrid(2, planned(plan)), first, 2)
    ]
    assert seen == [(3.0, 1.0), (5.5, 1.5)]


def test_agrees_with_the_real_clients():
    """The trainers' own q, over rounds of half the nodes, BatchNorm and all."""
    nodes = TorchClient(FedDynTrainer, TrainSettings(learning_rate=0.1, batch_size=4))
    strategy = FedDyn(
        num_clients=NODES,
        alpha=0.5,
        parameters=nodes.parameters,
        fraction_train=0.5,
    )
    grid = FakeGrid(NODES, nodes)
    for _ in drive(strategy, grid, nodes.initial, 4):
        mean = {
            name: sum(
                (q[name] for q in nodes.states.values()), start=torch.zeros(())
            ).numpy()
            / NODES
            for name in nodes.parameters
        }
        assert_close(strategy.dual, mean, 1e-12)
    assert len(nodes.states) > NODES // 2
