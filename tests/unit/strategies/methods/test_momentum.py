"""FedAvg with server momentum: Flower's FedAvgM, and loops written by hand."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvgM

from strategies.methods.momentum import FLFAServerMomentum, ServerMomentum
from tests.unit.strategies.fakes import FakeGrid, ndarrays, record, start
from tests.unit.strategies.methods.cases import (
    NODES,
    PARAMETERS,
    assert_close,
    client,
    drive,
    planned,
    weights,
)

ROUNDS = 4
FORMS = ServerMomentum.form.values.names
SOME = {"fraction_train": 0.5, "fraction_evaluate": 0.0}
RATES = [(0.9, 1.0), (0.9, 0.3), (0.0, 0.5)]


def run(strategy, dtype=np.float32):
    """Parameters only: Flower's class has a momentum on buffers as well."""
    grid = FakeGrid(NODES, client)
    _, history = start(strategy, grid, weights(dtype, PARAMETERS), ROUNDS)
    return history


def decoded(entry):
    return {
        name: np.frombuffer(data, dtype).reshape(shape)
        for name, dtype, shape, data in entry
    }


@pytest.mark.parametrize(("momentum", "rate"), RATES)
def test_heavy_ball_is_flowers_fedavgm(momentum, rate):
    """Bit for bit: the same operations in the same order.

    Flower's first velocity is d; here it is m 0 + 1 d, which is d.
    """
    settings = {"server_momentum": momentum, "server_learning_rate": rate, **SOME}
    want = run(FedAvgM(**settings))
    strategy = FLFAServerMomentum(form="heavy-ball", layers=["fc", "stem"], **settings)
    assert run(strategy) == want
    assert len({str(entry) for entry in want}) == ROUNDS + 1


@pytest.mark.parametrize("momentum", [0.1, 0.9])
def test_dampened_is_heavy_ball_with_a_smaller_rate(momentum):
    """v = m v + (1 - m) d is 1 - m times v = m v + d, in every round."""
    dampened = ServerMomentum(server_momentum=momentum, **SOME)
    smaller = {"server_momentum": momentum, "server_learning_rate": 1 - momentum}
    heavy = ServerMomentum(form="heavy-ball", **smaller, **SOME)
    flower = FedAvgM(**smaller, **SOME)
    histories = [run(strategy, np.float64) for strategy in (dampened, heavy, flower)]
    for ours, *others in zip(*histories, strict=True):
        for other in others:
            assert_close(decoded(ours), decoded(other), 1e-14)
    assert_close(
        dampened.velocity,
        {k: (1 - momentum) * v for k, v in heavy.velocity.items()},
        1e-14,
    )


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize(
    ("form", "after"),
    [("dampened", (1.0, 3.5)), ("heavy-ball", (2.0, 7.0)), ("nesterov", (3.0, 9.5))],
)
def test_two_rounds_by_hand(form, after, rate):
    """Mean updates 2, then 4, so d = -2, then -4, whatever was sent; m = 1/2.

    dampened: v = -1, then -1/2 - 2 = -5/2. heavy-ball: v = -2, then -1 - 4 = -5.
    nesterov: the same v, but down by d + v/2 = -3, then -4 - 5/2 = -13/2. The rate
    multiplies every step. All of it is exact in binary.
    """
    plan = {1: {"fc.weight": (1.0, 3.0)}, 2: {"fc.weight": (2.0, 6.0)}}
    strategy = ServerMomentum(form=form, server_momentum=0.5, server_learning_rate=rate)
    start_at = record({"fc.weight": np.zeros(1)})
    got = [
        float(arrays["fc.weight"].numpy()[0])
        for _, arrays in drive(strategy, FakeGrid(2, planned(plan)), start_at, 2)
    ]
    assert got == [rate * value for value in after]


def loop_by_hand(form, m, rate, old, means):
    """The three recursions, one array, straight from the specification."""
    v, out = np.zeros_like(old), []
    for mean_of in means:
        d = old - mean_of(old)
        if form == "dampened":
            v = m * v + (1 - m) * d
            old = old - rate * v
        elif form == "heavy-ball":
            v = m * v + d
            old = old - rate * v
        else:
            v = m * v + d
            old = old - rate * (d + m * v)
        out.append(old)
    return out


@pytest.mark.parametrize(("momentum", "rate"), RATES)
@pytest.mark.parametrize("form", FORMS)
def test_against_a_loop(form, momentum, rate):
    """Clients halve the weights and add their number; node i has i samples.

    With two nodes the mean is w/2 + (1 + 2*2)/3 = w/2 + 5/3.
    """

    def halving(message):
        reply = client(message)
        node = message.metadata.dst_node_id
        if "arrays" in reply:
            sent = ndarrays(message.content["arrays"])
            reply["arrays"] = record({k: v / 2 + node for k, v in sent.items()})
            reply["metrics"]["num-examples"] = node
        return reply

    strategy = ServerMomentum(
        form=form, server_momentum=momentum, server_learning_rate=rate
    )
    first = weights(np.float64, PARAMETERS)
    got = [a for _, a in drive(strategy, FakeGrid(2, halving), first, ROUNDS)]
    for name, old in ndarrays(first).items():
        want = loop_by_hand(
            form, momentum, rate, old, [lambda w: w / 2 + 5 / 3] * ROUNDS
        )
        for arrays, values in zip(got, want, strict=True):
            np.testing.assert_allclose(arrays[name].numpy(), values, rtol=1e-12)
