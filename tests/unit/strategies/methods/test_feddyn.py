"""FedDyn: the server's H is the mean of the clients' dual variables."""

import numpy as np
import pytest
import torch
from flwr.app import Error

from clients import TrainSettings
from clients.methods.feddyn import FedDynTrainer
from strategies.methods.feddyn import FedDyn, FLFAFedDyn
from tests.unit.strategies.fakes import FakeGrid, answer, bits, ndarrays, record
from tests.unit.strategies.methods.cases import (
    LAYERS,
    NODES,
    PARAMETERS,
    assert_close,
    client,
    drive,
    planned,
    replies_in,
    sent_in,
    weights,
)
from tests.unit.strategies.methods.torch_client import TorchClient

ROUNDS = 5


class DualClients:
    """Nodes with ``q += w - W``; node 2 fails in round 3, and keeps its q."""

    def __init__(self):
        zero = {k: np.zeros(a.shape) for k, a in weights(only=PARAMETERS).items()}
        self.q = {node: dict(zero) for node in range(1, NODES + 1)}

    def __call__(self, message):
        node = message.metadata.dst_node_id
        if node == 2 and message.content["config"]["server-round"] == 3:
            return Error(code=1, reason="lost")
        reply = client(message)
        sent, trained = ndarrays(message.content["arrays"]), ndarrays(reply["arrays"])
        for name, q in self.q[node].items():
            moved = trained[name].astype(np.float64) - sent[name]
            self.q[node] = {**self.q[node], name: q + moved}
        return reply

    def mean(self):
        return {
            name: sum(q[name] for q in self.q.values()) / NODES for name in PARAMETERS
        }


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_dual_is_the_mean_over_all_clients(fraction):
    """Of all N, those that have never taken part included; after every round."""
    nodes = DualClients()
    grid = FakeGrid(NODES, nodes)
    strategy = FLFAFedDyn(
        layers=LAYERS,
        num_clients=NODES,
        parameters=PARAMETERS,
        fraction_train=fraction,
    )
    for _ in drive(strategy, grid, weights(np.float64), ROUNDS):
        assert_close(strategy.dual, nodes.mean(), 1e-14)
    took_part = {m.metadata.dst_node_id for m in grid.train_messages(1)}
    assert (len(took_part) < NODES) == (fraction < 1)


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


@pytest.mark.parametrize("total", [3, 100])
def test_round_1(total):
    """W1 = W0 + (1 + |S|/N) mean(delta), with S = 3."""
    grid = FakeGrid(3, client)
    first = weights(np.float64, PARAMETERS)
    ((_, arrays),) = drive(FedDyn(num_clients=total), grid, first, 1)
    replies, sent = replies_in(grid, 3), sent_in(grid, 1)
    want = {
        k: sent[k] + (1 + 3 / total) * np.mean([r[k] - sent[k] for r in replies], 0)
        for k in PARAMETERS
    }
    assert_close(ndarrays(arrays), want, 1e-14)


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


def test_alpha_is_for_the_clients_only():
    """H has no alpha in it; 0 is not FedAvg on the server."""
    histories = [
        [
            bits(a)
            for _, a in drive(
                FedDyn(num_clients=3, alpha=alpha, parameters=PARAMETERS),
                FakeGrid(2, client),
                weights(),
                3,
            )
        ]
        for alpha in (0.0, 0.01, 5.0)
    ]
    assert histories[0] == histories[1] == histories[2]


def test_the_number_of_samples_does_not_matter():
    """Two nodes with 1 and 1000 samples: (0 + 4)/2 + 4/2, not nearly 8."""

    def unbalanced(message):
        node = message.metadata.dst_node_id
        return answer({"w": np.array([4.0 * (node == 2)])}, 1000 if node == 2 else 1)

    first = record({"w": np.zeros(1)})
    ((_, arrays),) = drive(FedDyn(num_clients=2), FakeGrid(2, unbalanced), first, 1)
    assert arrays["w"].numpy().tolist() == [4.0]


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
