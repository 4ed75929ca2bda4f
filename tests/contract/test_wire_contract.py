"""What the server writes, the client reads: two libraries that share only a key."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp.strategy import FedAvg

import clients
import strategies
from clients.settings import FA_LAYERS, aligned_layers
from tests.unit.strategies.fakes import FakeGrid, noisy_client, over_the_wire, record

NAMES = ["features.0.0", "features.17.conv.0.0", "classifier.1"]


def by_protobuf(message: Message) -> Message:
    data = message_to_proto(message).SerializeToString()
    return message_from_proto(ProtoMessage.FromString(data))


def train_messages(strategy, names=NAMES):
    arrays = record({f"{name}.weight": np.zeros(2) for name in names})
    grid = FakeGrid(3, noisy_client)
    return list(strategy.configure_train(1, arrays, ConfigRecord({"lr": 0.1}), grid))


def test_the_keys_agree():
    assert strategies.FA_LAYERS == FA_LAYERS == "fa-layers"


@pytest.mark.parametrize("wire", [by_protobuf, over_the_wire])
@pytest.mark.parametrize(
    "cls", [strategies.FLFAFedAvg, strategies.FLFAFedAvgM, strategies.FLFAFedAdam]
)
@pytest.mark.parametrize("chosen", [[], NAMES[1:2], NAMES[::-1]])
def test_the_client_reads_what_the_server_writes(cls, wire, chosen):
    rule = "fixed" if chosen else "lowest"
    strategy = cls(layers=NAMES, rule=rule, fixed_layers=chosen)
    messages = train_messages(strategy)
    assert len(messages) == 3
    for message in messages:
        arrived = wire(message)
        assert arrived is not message
        read = aligned_layers(arrived.content["config"])
        assert type(read) is tuple
        assert read == tuple(chosen)
        settings = clients.TrainSettings(fa_layers=read)
        assert hash(settings) == hash(clients.TrainSettings(fa_layers=tuple(chosen)))


@pytest.mark.parametrize("wire", [by_protobuf, over_the_wire])
def test_chosen_layers_of_a_second_round(wire):
    """Layer 1 of 3 is where the clients cancel out, by hand."""
    strategy = strategies.FLFAFedAvg(layers=NAMES, rule="lowest")
    arrays = record({f"{name}.weight": np.zeros(2) for name in NAMES})

    def client(message):
        sign = (-1.0) ** message.metadata.dst_node_id
        reply = noisy_client(message)
        steps = ([1.0, 0.0], [sign, 0.0], [1.0, 1.0])
        updates = dict(zip(arrays, map(np.array, steps), strict=True))
        reply["arrays"] = record(updates)
        return reply

    grid = FakeGrid(2, client)
    config = ConfigRecord()
    messages = strategy.configure_train(1, arrays, config, grid)
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    for message in strategy.configure_train(2, arrays, config, grid):
        assert aligned_layers(wire(message).content["config"]) == (NAMES[1],)


def test_a_plain_strategy_is_noticed():
    for message in train_messages(FedAvg()):
        with pytest.raises(ValueError, match=r"'fa-layers'.*LayerSelection"):
            aligned_layers(over_the_wire(message).content["config"])


def test_the_layers_of_a_model_are_candidates_under_the_same_names():
    """``eligible_layers`` and the arrays of a state dict name a layer alike."""
    from torch import nn

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    names = clients.eligible_layers(model)
    assert names == ["0", "1.0"]
    arrays = record({k: v.numpy() for k, v in model.state_dict().items()})
    strategy = strategies.FLFAFedAvg(layers=names, rule="fixed", fixed_layers=names)
    grid = FakeGrid(2, noisy_client)
    for message in strategy.configure_train(1, arrays, ConfigRecord(), grid):
        read = aligned_layers(over_the_wire(message).content["config"])
        with clients.feedback_alignment(model, read):
            pass
