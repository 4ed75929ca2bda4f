"""``FedMethod.server_step``: which arrays it gets, and when replies are decoded."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from strategies.methods import base
from strategies.methods.base import FedMethod
from tests.unit.strategies.fakes import NAMES, bits, trained_replies, values_of

PARAMETERS = NAMES[:2]


class Recording(FedMethod):
    """A method whose step records its arguments and changes nothing."""

    def server_step(self, sent, mean, replies):
        self.replies = [dict(reply.arrays) for reply in replies]
        self.arguments = [*sent.values(), *mean.values()]
        return {}


@pytest.mark.parametrize("wrap", [list, iter])
def test_a_step_gets_read_only_parameters_of_all_replies(wrap):
    """Also if the replies are an iterator, as from Flower's grid."""
    strategy = Recording(parameters=PARAMETERS)
    want, _ = FedAvg().aggregate_train(1, trained_replies(FedAvg()))
    replies = trained_replies(strategy)
    aggregated, _ = strategy.aggregate_train(1, wrap(replies))
    assert bits(aggregated) == bits(want)
    assert len(strategy.replies) == len(replies) == 5
    for arrays, values in zip(strategy.replies, values_of(replies), strict=True):
        assert list(arrays) == list(PARAMETERS)
        assert all(np.array_equal(arrays[name], values[name]) for name in PARAMETERS)
    arrays = [a for one in strategy.replies for a in one.values()]
    arrays += strategy.arguments
    assert len(arrays) == 2 * 5 + 2 * 2
    assert not any(array.flags.writeable for array in arrays)


def test_replies_are_not_decoded_for_a_method_without_a_step(monkeypatch):
    want, _ = FedAvg().aggregate_train(1, trained_replies(FedAvg()))
    strategy = FedMethod(parameters=PARAMETERS)
    replies = trained_replies(strategy)
    monkeypatch.delattr(base, "DecodedArrays")
    assert bits(strategy.aggregate_train(1, replies)[0]) == bits(want)
    with pytest.raises(NameError):
        Recording(parameters=PARAMETERS).aggregate_train(1, replies)
