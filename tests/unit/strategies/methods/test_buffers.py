"""Buffers are FedAvg's under every method; types and order stay as they are."""

from functools import cache

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from tests.unit.strategies.fakes import FakeGrid, ndarrays, record, start
from tests.unit.strategies.methods.cases import (
    BUFFERS,
    CHANGE_THE_SERVER,
    METHODS,
    NODES,
    PARAMETERS,
    client,
    sent_in,
    weights,
)

ROUNDS = 3
SOME = {"fraction_train": 0.5, "fraction_evaluate": 0.0}


def run(strategy, arrays=None):
    grid = FakeGrid(NODES, client)
    arrays = weights() if arrays is None else arrays
    result, history = start(strategy, grid, arrays, ROUNDS)
    return result, history, grid


@cache
def fedavg():
    return run(FedAvg(**SOME))


def buffers(history):
    return [[row for row in entry if row[0] in BUFFERS] for entry in history]


@pytest.mark.parametrize("name", METHODS)
def test_buffers_are_fedavgs(name):
    """Weighted by the number of samples even where parameters count alike."""
    _, want, want_grid = fedavg()
    _, got, got_grid = run(METHODS[name].build(flfa=True, **SOME))
    assert buffers(got) == buffers(want)
    assert len({str(entry) for entry in buffers(want)}) == ROUNDS + 1
    for server_round in range(1, ROUNDS + 1):
        sent, expected = (
            sent_in(got_grid, server_round),
            sent_in(want_grid, server_round),
        )
        for buffer in BUFFERS:
            assert sent[buffer].tobytes() == expected[buffer].tobytes()


@pytest.mark.parametrize("name", CHANGE_THE_SERVER)
def test_the_parameters_of_these_are_not_fedavgs(name):
    """Or the test above would compare FedAvg with FedAvg."""
    _, want, _ = fedavg()
    _, got, _ = run(METHODS[name].build(**SOME))
    mine, theirs = dict_of(got[-1]), dict_of(want[-1])
    assert all(mine[parameter] != theirs[parameter] for parameter in PARAMETERS)


def dict_of(entry):
    return {name: data for name, _, _, data in entry}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", METHODS)
def test_types_shapes_and_order_stay(name, dtype):
    """In what is returned, in what is sent, and in the server's own state."""
    first = weights(dtype)
    strategy = METHODS[name].build(flfa=True, **SOME)
    result, history, grid = run(strategy, first)
    for entry in [*history, *(m.content["arrays"] for m in grid.received)]:
        rows = (
            [(k, d, s) for k, d, s, _ in entry]
            if isinstance(entry, list)
            else [(k, a.dtype, tuple(a.shape)) for k, a in entry.items()]
        )
        assert [row[0] for row in rows] == list(first)
        for key, kind, shape in rows:
            assert shape == tuple(first[key].shape)
            if key in PARAMETERS:
                assert kind == np.dtype(dtype).name
    assert list(result.arrays) == list(first)
    for own in ("velocity", "momentum", "previous", "dual", "control"):
        for key, values in getattr(strategy, own, {}).items():
            assert key in PARAMETERS
            assert (values.dtype, values.shape) == (dtype, tuple(first[key].shape))


@pytest.mark.parametrize("name", CHANGE_THE_SERVER)
def test_without_names_all_floating_arrays_but_statistics_are_parameters(name):
    """A momentum would push a variance below zero."""
    histories = [
        run(METHODS[name].build(parameters=names, **SOME), weights())[1]
        for names in (None, PARAMETERS)
    ]
    assert "stem.running_var" in dict_of(histories[0][-1])
    assert histories[0] == histories[1]


@pytest.mark.parametrize("name", [x for x in METHODS if x != "FedProx"])
def test_a_counter_is_no_parameter_even_without_names(name):
    """The default is all floating arrays, and Flower's mean of integers is floating."""
    _, want, _ = fedavg()
    _, got, _ = run(METHODS[name].build(parameters=None, **SOME))
    counters = [
        [row for row in entry if row[0] == "stem.count"] for entry in [*got, *want]
    ]
    assert counters[: len(got)] == counters[len(got) :]


@pytest.mark.parametrize("name", METHODS)
def test_a_parameter_without_dimensions(name):
    """A scale, say: NumPy makes scalars of such arrays, Flower wants arrays."""
    first = record({"fc.weight": np.ones(3, np.float32), "scale": np.float32(2)})
    names = {} if name == "FedProx" else {"parameters": ("fc.weight", "scale")}
    strategy = METHODS[name].build(**names, **SOME)
    result, history, _ = run(strategy, first)
    assert ndarrays(result.arrays)["scale"].shape == ()
    assert result.arrays["scale"].dtype == "float32"
    assert len({str(entry) for entry in history}) == ROUNDS + 1
