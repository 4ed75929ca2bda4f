"""SCAFFOLD: the server's c is the mean of the clients' control variates."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, MessageType

from clients import TrainSettings
from clients.methods.scaffold import ScaffoldTrainer
from strategies.methods.scaffold import CONTROL, STEP_LENGTH, FLFAScaffold, Scaffold
from tests.unit.strategies.fakes import FakeGrid, bits, ndarrays, record, start
from tests.unit.strategies.methods.cases import (
    LAYERS,
    NODES,
    PARAMETERS,
    assert_close,
    client,
    drive,
    frozen,
    planned,
    replies_in,
    sent_in,
    weights,
)
from tests.unit.strategies.methods.torch_client import TorchClient

ROUNDS = 5


class ControlledClients:
    """Nodes with option II: ``c_i += (W - w) / length - c``; one reply gets lost.

    Node i has the step length i/4 (so does its reply), and corrects its weights by
    ``length (c_i - c)``, which is what the correction adds up to.
    """

    def __init__(self):
        zero = {k: np.zeros(a.shape) for k, a in weights(only=PARAMETERS).items()}
        self.own = {node: dict(zero) for node in range(1, NODES + 1)}

    def __call__(self, message):
        node = message.metadata.dst_node_id
        if node == 2 and message.content["config"]["server-round"] == 3:
            return Error(code=1, reason="lost")
        reply = client(message)
        length = reply["metrics"][STEP_LENGTH]
        sent, trained = ndarrays(message.content["arrays"]), ndarrays(reply["arrays"])
        for name, c in ndarrays(message.content[CONTROL]).items():
            own = self.own[node][name]
            trained[name] = (trained[name] + length * (own - c)).astype(c.dtype)
            moved = sent[name].astype(np.float64) - trained[name]
            self.own[node][name] = own - c + moved / length
        reply["arrays"] = record(trained)
        return reply

    def mean(self):
        return {
            name: sum(own[name] for own in self.own.values()) / NODES
            for name in PARAMETERS
        }


@pytest.mark.parametrize(("fraction", "rate"), [(0.5, 0.5), (1.0, 1.0)])
def test_c_is_the_mean_over_all_clients(rate, fraction):
    """Of all N, those that have never taken part included; after every round."""
    nodes = ControlledClients()
    grid = FakeGrid(NODES, nodes)
    kwargs = {
        "num_clients": NODES,
        "parameters": PARAMETERS,
        "global_learning_rate": rate,
        "fraction_train": fraction,
    }
    strategy = FLFAScaffold(layers=LAYERS, **kwargs)
    for _ in drive(strategy, grid, weights(np.float64), ROUNDS):
        assert_close(strategy.control, nodes.mean(), 1e-14)
    took_part = {m.metadata.dst_node_id for m in grid.train_messages(1)}
    assert (len(took_part) < NODES) == (fraction < 1)


def test_every_train_message_carries_c():
    """Of the parameters only, in their type; zero in round 1; nobody else gets it."""
    grid = FakeGrid(NODES, client)
    strategy = FLFAScaffold(
        layers=LAYERS, num_clients=NODES, parameters=PARAMETERS, fraction_train=0.5
    )
    expected = {k: np.zeros(a.shape, np.float32) for k, a in weights().items()}
    expected = {name: expected[name] for name in PARAMETERS}
    for server_round, _ in drive(strategy, grid, weights(), ROUNDS):
        messages = grid.train_messages(server_round)
        assert len(messages) == NODES // 2
        for message in messages:
            assert set(message.content) == {"arrays", "config", "control"}
            control = ndarrays(message.content["control"])
            assert frozen(control) == frozen(expected)
        expected = dict(strategy.control)
        assert all(values.any() for values in expected.values())


def test_evaluation_messages_carry_no_c():
    grid = FakeGrid(2, client)
    start(Scaffold(num_clients=2, parameters=PARAMETERS), grid, weights(), 2)
    kinds = {MessageType.TRAIN: {"arrays", "config", "control"}}
    for message in grid.received:
        want = kinds.get(message.metadata.message_type, {"arrays", "config"})
        assert set(message.content) == want


def test_buffers_are_nothing_to_c():
    """The same c bit for bit with the buffers and without them."""
    controls = []
    for only in (None, PARAMETERS):
        strategy = Scaffold(num_clients=NODES, parameters=PARAMETERS)
        list(drive(strategy, FakeGrid(NODES, client), weights(only=only), ROUNDS))
        controls.append(frozen(strategy.control))
    assert controls[0] == controls[1]


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_model_moves_by_the_uniform_mean(rate):
    """W += s mean(w_i - W), though the nodes have 11 to 14 samples."""
    grid = FakeGrid(NODES, client)
    strategy = Scaffold(
        num_clients=NODES,
        parameters=PARAMETERS,
        global_learning_rate=rate,
        fraction_train=0.5,
    )
    for server_round, arrays in drive(strategy, grid, weights(np.float64), 3):
        sent, replies = sent_in(grid, server_round), replies_in(grid, NODES // 2)
        want = {
            k: sent[k] + rate * np.mean([r[k] - sent[k] for r in replies], 0)
            for k in PARAMETERS
        }
        assert_close({k: arrays[k].numpy() for k in PARAMETERS}, want, 1e-14)


def test_two_rounds_by_hand():
    """N = 4, two nodes with step length 1, W = 0, c = 0.

    Updates -4 and -8: changes 4 and 8, c = 12/4 = 3, W = -6. Updates -2 and 2:
    changes 2 - 3 and -2 - 3, c = 3 - 6/4 = 3/2, W stays.
    """
    plan = {1: {"fc.weight": (-4.0, -8.0)}, 2: {"fc.weight": (-2.0, 2.0)}}
    strategy = Scaffold(num_clients=4)
    first = record({"fc.weight": np.zeros(1)})
    seen = [
        (arrays["fc.weight"].numpy().item(), strategy.control["fc.weight"].item())
        for _, arrays in drive(strategy, FakeGrid(2, planned(plan)), first, 2)
    ]
    assert seen == [(-6.0, 3.0), (-6.0, 1.5)]


def test_each_client_has_its_own_step_length():
    """Both move by -6, with lengths 2 and 3: gradients 3 and 2, c = 5/2."""

    def client_of(message):
        reply = planned({1: {"w": (-6.0, -6.0)}})(message)
        reply["metrics"][STEP_LENGTH] = 1.0 + message.metadata.dst_node_id
        return reply

    strategy = Scaffold(num_clients=2)
    list(drive(strategy, FakeGrid(2, client_of), record({"w": np.zeros(1)}), 1))
    assert strategy.control["w"].tolist() == [2.5]


def test_messages_are_not_changed_by_a_later_round():
    """c is updated in place on the server; what was sent stays what it was."""
    strategy = Scaffold(num_clients=2, parameters=PARAMETERS)
    grid = FakeGrid(2, client)
    messages = list(strategy.configure_train(1, weights(), ConfigRecord(), grid))
    before = [bits(message.content[CONTROL]) for message in messages]
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert [bits(message.content[CONTROL]) for message in messages] == before


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_agrees_with_the_real_clients(momentum):
    """The trainers' own c_i and step lengths, rounds of half the nodes, BatchNorm."""
    nodes = TorchClient(
        ScaffoldTrainer,
        TrainSettings(learning_rate=0.05, batch_size=4, momentum=momentum),
    )
    strategy = Scaffold(
        num_clients=NODES, parameters=nodes.parameters, fraction_train=0.5
    )
    grid = FakeGrid(NODES, nodes)
    for server_round, arrays in drive(strategy, grid, nodes.initial, 4):
        mean = {
            name: sum(
                (own[name] for own in nodes.states.values()), start=torch.zeros(())
            ).numpy()
            / NODES
            for name in nodes.parameters
        }
        assert_close(strategy.control, mean, 1e-12)
        assert list(arrays) == list(nodes.initial)
        assert set(sent_in(grid, server_round)) == set(nodes.initial)
    lengths = {r.content["metrics"][STEP_LENGTH] for r in grid.replied}
    assert len(lengths) > 1
