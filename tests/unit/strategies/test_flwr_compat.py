"""The private part of Flower that the strategies use: present, and replaceable."""

from __future__ import annotations

import inspect

import pytest
from flwr.app import ConfigRecord, Error, Message
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from strategies._flwr_compat import valid_train_replies
from tests.unit.strategies.fakes import FakeGrid, noisy_client, record


def test_flowers_private_method_is_what_it_was():
    """If this fails, Flower has changed: read its FedAvg.aggregate_train again."""
    signature = inspect.signature(FedAvg._check_and_log_replies)
    assert list(signature.parameters) == ["self", "replies", "is_train", "validate"]
    assert "_check_and_log_replies(" in inspect.getsource(FedAvg.aggregate_train)


class WithoutIt(FedAvg):
    """A FedAvg of a Flower that has dropped the method."""

    _check_and_log_replies = None


def replies(change=lambda content: None):
    """Return three replies, of which the first is changed."""
    strategy = FedAvg(min_train_nodes=3, min_available_nodes=3)
    grid = FakeGrid(3, noisy_client)
    arrays = record({"a": [1.0], "b": [2.0]})
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    received = list(grid.send_and_receive(messages))
    change(received[0].content)
    return received


INCONSISTENT = {
    "no arrays": lambda content: content.pop("arrays"),
    "two array records": lambda content: content.update(more=record({})),
    "another array": lambda content: content["arrays"].update(c=content["arrays"]["a"]),
    "another metric": lambda content: content["metrics"].update(more=1),
    "no weight": lambda content: content["metrics"].pop("num-examples"),
    "a list as weight": lambda c: c["metrics"].update({"num-examples": [1]}),
    "another record name": lambda c: c.update(other=c.pop("arrays")),
}


@pytest.mark.parametrize("case", INCONSISTENT)
@pytest.mark.parametrize("strategy", [FedAvg, WithoutIt])
def test_inconsistent_replies_raise_with_and_without_it(case, strategy):
    with pytest.raises(InconsistentMessageReplies):
        valid_train_replies(strategy(), replies(INCONSISTENT[case]))


@pytest.mark.parametrize("strategy", [FedAvg, WithoutIt])
def test_errors_are_logged_and_left_out(strategy, caplog):
    good = replies()
    error = Message(Error(code=1, reason="the battery is empty"), reply_to=good[0])
    with caplog.at_level("INFO", "flwr"):
        replied = iter([good[0], error, *good[1:]])
        assert valid_train_replies(strategy(), replied) == good
    assert "the battery is empty" in caplog.text
    assert valid_train_replies(strategy(), []) == []
    assert valid_train_replies(strategy(), [error]) == []


def test_another_weight():
    strategy = WithoutIt(weighted_by_key="train-loss")
    assert len(valid_train_replies(strategy, replies())) == 3
    with pytest.raises(InconsistentMessageReplies, match="'images'"):
        valid_train_replies(WithoutIt(weighted_by_key="images"), replies())
