"""``LayerSelection``: the messages it sends, and what they cost on the wire."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from strategies import FA_LAYERS, FLFAFedAvg, FLFAFedAvgM, LayerSelection
from strategies.rules import RULES
from tests.unit.strategies.fakes import (
    FakeGrid,
    noisy_client,
    record,
    start,
)

LAYERS = ["a", "b", "c"]


def weights():
    return record({f"{layer}.weight": np.zeros(2, np.float32) for layer in LAYERS})


@pytest.mark.parametrize("which", ["layers", "observed_layers"])
def test_a_layer_without_an_array_is_refused_before_a_message_is_sent(which):
    arrays = record({"conv.weight": np.zeros(2), "bn.bias": np.zeros(2)})
    arguments = {"layers": ["conv"], "rule": "none", which: ["conv", "fc", "bn.weight"]}
    strategy = LayerSelection(**arguments)
    grid = FakeGrid(2, noisy_client)
    names = r"fc\.weight, bn\.weight\.weight among .* conv\.weight, bn\.bias"
    with pytest.raises(ValueError, match=names):
        list(strategy.configure_train(1, arrays, ConfigRecord(), grid))


@pytest.mark.parametrize("rule", list(RULES))
def test_every_train_message_has_the_key_and_no_other_message(rule):
    fixed = ["b"] if rule == "fixed" else []
    strategy = FLFAFedAvg(layers=LAYERS, rule=rule, fixed_layers=fixed)
    grid = FakeGrid(2, noisy_client)
    start(strategy, grid, weights(), 2, {"lr": 0.5})
    train = [m for m in grid.received if m.metadata.message_type == MessageType.TRAIN]
    other = [m for m in grid.received if m.metadata.message_type != MessageType.TRAIN]
    assert (len(train), len(other)) == (4, 4)
    for message in train:
        assert list(message.content) == ["arrays", "config"]
        assert set(message.content["config"]) == {"lr", "server-round", FA_LAYERS}
    assert not any(FA_LAYERS in message.content["config"] for message in other)
    assert grid.fa_layers(1) == fixed


def test_the_callers_config_is_left_as_flower_leaves_it():
    """Flower writes the round into it; its layers are overwritten in messages only."""
    strategy = FLFAFedAvg(layers=LAYERS, rule="fixed", fixed_layers=["a", "b"])
    grid = FakeGrid(2, noisy_client)
    values = {"lr": 0.5, "sizes": [1, 2], "raw": b"\0", FA_LAYERS: ["c"]}
    config = ConfigRecord(dict(values))
    for server_round in (1, 2):
        messages = list(strategy.configure_train(server_round, weights(), config, grid))
        expected = {**values, "server-round": server_round}
        assert dict(config) == expected
        for message in messages:
            sent = message.content["config"]
            assert sent is not config
            assert dict(sent) == {**expected, FA_LAYERS: ["a", "b"]}
        # Nor do changes of a message reach the caller or the strategy.
        sent["lr"] = 7.0
        sent[FA_LAYERS].append("x")
        assert dict(config) == expected
        assert strategy.selected == ["a", "b"]


def test_records_under_other_keys():
    strategy = FLFAFedAvg(layers=LAYERS, arrayrecord_key="w", configrecord_key="c")
    grid = FakeGrid(2, noisy_client)
    message = next(iter(strategy.configure_train(1, weights(), ConfigRecord(), grid)))
    assert list(message.content) == ["w", "c"]
    assert dict(message.content["c"]) == {"server-round": 1, FA_LAYERS: []}


def test_without_training_nothing_is_sent():
    strategy = FLFAFedAvg(layers=LAYERS, fraction_train=0.0)
    grid = FakeGrid(2, noisy_client)
    assert list(strategy.configure_train(1, weights(), ConfigRecord(), grid)) == []
    assert strategy.aggregate_train(1, []) == (None, None)
    result, _ = start(strategy, grid, weights(), 2)
    assert len(result.evaluate_metrics_clientapp) == 2


def test_it_is_a_fedavg_and_logs_its_summary(caplog):
    strategy = FLFAFedAvgM(layers=["conv1", "fc9"], rule="highest", server_momentum=0.5)
    assert isinstance(strategy, FedAvg)
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    text = "".join(caplog.messages)
    assert all(word in text for word in ("highest", "conv1", "fc9", "FedAvgM", "0.5"))


# What FLFA adds to the wire: the names of the layers, and nothing else. The names are
# those of torchvision's MobileNetV2.

LONG_NAMES = ["features.17.conv.0.0", "features.18.0", "classifier.1"]
CHARACTERS = sum(map(len, LONG_NAMES))


@pytest.fixture(scope="module")
def messages():
    """A train message of round 2, by strategy."""
    rng = np.random.default_rng(0)
    arrays = {f"{x}.weight": rng.normal(size=(8, 4)).astype("f4") for x in LONG_NAMES}
    strategies = {
        "FedAvg": FedAvg(),
        "none": FLFAFedAvg(layers=LONG_NAMES, rule="none"),
        "lowest": FLFAFedAvg(layers=LONG_NAMES, num_layers=3),
    }
    found = {}
    for name, strategy in strategies.items():
        grid = FakeGrid(2, noisy_client)
        start(strategy, grid, record(arrays), 2, {"lr": 0.1})
        sent = grid.train_messages(2)
        found[name] = min(sent, key=lambda message: message.metadata.dst_node_id)
    return found


def wire_bytes(message):
    """Return the bytes that Flower's grid pushes: the message and all its objects."""
    return sum(len(obj.deflate()) for obj in get_all_nested_objects(message).values())


def test_the_serialised_message_grows_by_the_names(messages):
    """A string costs its characters, a tag and a length; a longer body at most one
    more byte in each of the four lengths around it (list, value, item, record) and
    one more digit in the header. Without layers it is the key and less than 32 bytes
    of framing.
    """
    size = {name: wire_bytes(message) for name, message in messages.items()}
    minimum = CHARACTERS + 2 * len(LONG_NAMES)
    assert minimum <= size["lowest"] - size["none"] <= minimum + 5
    key_only = size["none"] - size["FedAvg"]
    assert len(FA_LAYERS) < key_only < len(FA_LAYERS) + 32
    layers = messages["lowest"].content["config"][FA_LAYERS]
    assert sorted(layers) == sorted(LONG_NAMES)
    # An object's id is the hash of its bytes.
    assert len({m.content["arrays"].object_id for m in messages.values()}) == 1


@pytest.mark.parametrize("names", [[], ["größe.0", "层"]], ids=len)
def test_the_names_survive_the_wire(names):
    rule = "fixed" if names else "none"
    strategy = FLFAFedAvg(layers=names, rule=rule, fixed_layers=names)
    grid = FakeGrid(2, noisy_client)
    arrays = record({f"{x}.weight": np.zeros(1) for x in names})
    sent = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    list(grid.send_and_receive(sent))
    assert grid.fa_layers(1) == names
    assert all(type(name) is str for name in grid.fa_layers(1))
