"""FLFA on Flower's robust strategies and in its wrappers of differential privacy."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, Message, MessageType
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import PrivacyConfig
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.privacy_accounting import NeighboringRelation, SamplingMethod

from strategies import FA_LAYERS, CheckedReplies, LayerSelection
from tests.unit.strategies.fakes import (
    FakeGrid,
    changing,
    float_weights,
    ndarrays,
    noisy_client,
    plan_client,
    record,
    start,
)

NODES, ROUNDS = 5, 3
ROBUST = {
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.25},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
}
FIXED = {"noise_multiplier": 0.5, "clipping_norm": 2.0, "num_sampled_clients": NODES}
ADAPTIVE = {
    "noise_multiplier": 0.2,
    "num_sampled_clients": NODES,
    "initial_clipping_norm": 2.0,
    "clipped_count_stddev": 1.0,
}
WRAPPERS = {
    "ServerSideFixedClipping": FIXED,
    "ClientSideFixedClipping": FIXED,
    "ServerSideAdaptiveClipping": ADAPTIVE,
    "ClientSideAdaptiveClipping": ADAPTIVE,
}
# The wrapper, if there is one, and its inner strategy.
COMBINATIONS = {
    **{name: (None, name) for name in ROBUST},
    **{name: (name, "FedAvg") for name in WRAPPERS},
    "ServerSideFixedClipping of FedMedian": ("ServerSideFixedClipping", "FedMedian"),
}
MODS = {
    "ClientSideFixedClipping": fixedclipping_mod,
    "ClientSideAdaptiveClipping": adaptiveclipping_mod,
}


def combined(*bases):
    return type("Combined", bases, {})


def build(name, rule=None, *, checked=False):
    """Return Flower's combination; with a rule, its FLFA form in the right order."""
    wrapper, base = COMBINATIONS[name]
    kwargs = dict(ROBUST.get(base, {}))
    bases = [getattr(flower, base)]
    if rule is not None:
        bases.insert(0, LayerSelection)
        kwargs |= {"layers": ["a", "b"], "rule": rule}
    if checked and wrapper is None:
        bases.insert(0, CheckedReplies)
    strategy = combined(*bases)(**kwargs)
    if wrapper is None:
        return strategy
    private = getattr(flower, f"DifferentialPrivacy{wrapper}")
    bases = (CheckedReplies, private) if checked else (private,)
    return combined(*bases)(strategy=strategy, **WRAPPERS[wrapper])


def client_of(name, client=noisy_client):
    """Return clients with the mod that the wrapper needs."""
    mod = MODS.get(COMBINATIONS[name][0])

    def clipping(message):
        if mod is None or message.metadata.message_type != MessageType.TRAIN:
            return client(message)

        def app(received, context):
            return Message(client(received), reply_to=received)

        return mod(message, None, app).content

    return clipping


def run(strategy, client, rounds=ROUNDS, arrays=None):
    """Run Flower's own loop; the noise comes from NumPy's global generator."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    try:
        grid = FakeGrid(NODES, client)
        result, history = start(strategy, grid, arrays or float_weights(), rounds)
    finally:
        np.random.set_state(before)  # noqa: NPY002
    metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
    return history, metrics, getattr(strategy, "clipping_norm", None), grid


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_names_are_sent_and_the_aggregate_is_flowers_own(name):
    """These clients ignore the layers, so nothing else may differ."""
    want = run(build(name), client_of(name))
    strategy = build(name, "lowest", checked=True)
    *got, grid = run(strategy, client_of(name))
    assert got == [*want[:3]]
    layers = [grid.fa_layers(r) for r in (1, 2, 3)]
    assert layers[0] == []
    assert all(names in (["a"], ["b"]) for names in layers[1:])
    inner = getattr(strategy, "strategy", strategy)
    assert inner.selected == [min(inner.scores, key=inner.scores.get)]
    assert strategy.rejected == {}


def poisoned(message, bad=2):
    """Let one client have an update a million times as long."""
    content = noisy_client(message)
    is_train = message.metadata.message_type == MessageType.TRAIN
    if is_train and message.metadata.dst_node_id == bad:
        old = ndarrays(message.content["arrays"])
        for name, new in ndarrays(content["arrays"]).items():
            far = old[name] + np.float32(1e6) * (new - old[name])
            content["arrays"][name] = Array(far)
    return content


def distance_from_honest(history, grid, bad=2):
    """Return the largest distance from the range of the good clients' values."""
    furthest = 0.0
    for server_round, model in enumerate(history[1:]):
        replies = grid.replied[NODES * server_round : NODES * (server_round + 1)]
        good = [
            ndarrays(reply.content["arrays"])
            for reply in replies
            if reply.metadata.src_node_id != bad
        ]
        assert len(good) == NODES - 1
        for name, dtype, shape, data in model:
            values = np.frombuffer(data, dtype).reshape(shape)
            low, high = (f([x[name] for x in good], axis=0) for f in (np.min, np.max))
            furthest = max(furthest, (low - values).max(), (values - high).max())
    return furthest


@pytest.mark.parametrize("name", [*ROBUST, "FedAvg"])
def test_one_poisoned_client_does_not_move_a_robust_model(name):
    """Every value stays between the smallest and the largest of the good clients."""
    strategy = FedAvg() if name == "FedAvg" else build(name, "lowest")
    history, _, _, grid = run(strategy, poisoned)
    distance = distance_from_honest(history, grid)
    assert distance > 1e4 if name == "FedAvg" else distance <= 1e-6


def test_scores_are_of_clipped_updates():
    """Updates (100, 0) and (0, 1) by hand.

    As they are, the mean is along (100, 1): z = (100 + 1) / (2 sqrt 10001). Clipped to
    length 1, along (1, 1): z = 1 / sqrt 2.
    """
    zeros = np.zeros(2, np.float32)
    plan = plan_client({1: {"a.weight": ((100.0, 0.0), (0.0, 1.0)) * 2}})

    def score(wrap):
        inner = combined(LayerSelection, FedAvg)(layers=["a"])
        grid = FakeGrid(4, plan)
        start(wrap(inner), grid, record({"a.weight": zeros}), 1)
        return inner.scores["a"]

    def private(inner):
        return flower.DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1.0, 4)

    assert score(lambda x: x) == pytest.approx(101 / (2 * math.sqrt(10001)), rel=1e-6)
    assert score(private) == pytest.approx(1 / math.sqrt(2), rel=1e-6)


def with_array(name, values):
    def change(content):
        content["arrays"][name] = Array(np.float32(values))

    return change


WITH_NAN = with_array("a.bias", [0, math.nan, 0])
WITH_ONE_VALUE = with_array("b.weight", [1])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, WITH_NAN) for name in COMBINATIONS),
        ("FedMedian", WITH_ONE_VALUE),
        ("ServerSideFixedClipping", WITH_ONE_VALUE),
        ("ServerSideAdaptiveClipping", lambda content: content["arrays"].popitem()),
    ],
)
def test_checked_replies_go_to_the_left_of_everything(name, change):
    """A bad reply is as if it had not come: bit for bit the run without it."""
    changes = dict.fromkeys([(1, 4), (3, 1)], change)
    client = client_of(name)  # changed after the client's mod, which would raise

    def silent(message):
        config, node = message.content["config"], message.metadata.dst_node_id
        is_bad = (config["server-round"], node) in changes
        is_train = message.metadata.message_type == MessageType.TRAIN
        return None if is_bad and is_train else client(message)

    want = run(build(name), silent)
    strategy = build(name, "lowest", checked=True)
    *got, grid = run(strategy, changing(changes, client))
    assert got == [*want[:3]]
    assert set(strategy.rejected) == {1}
    assert grid.fa_layers(3) in (["a"], ["b"])


def test_inside_a_wrapper_the_check_comes_too_late():
    """The wrapper clips before its inner strategy gets a reply, and raises.

    One value instead of seven is worse: clipping makes seven good values of it.
    """
    inner = combined(CheckedReplies, LayerSelection, FedAvg)(layers=["a", "b"])
    strategy = flower.DifferentialPrivacyServerSideFixedClipping(inner, **FIXED)
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        run(strategy, changing({(1, 4): with_array("b.weight", [0] * 5)}))
    bad = changing({(3, 4): WITH_ONE_VALUE})
    run(strategy, bad)
    assert inner.rejected == {}
    outer = build("ServerSideFixedClipping", "lowest", checked=True)
    run(outer, bad)
    assert outer.rejected == {4: "its array 'b.weight' has the shape (1,), not (7,)"}


def test_wrong_orders_are_refused():
    """A wrapper holds its strategy: it is not a base of one, and has none."""
    private = flower.DifferentialPrivacyServerSideFixedClipping
    selection = {"layers": ["a"]}
    with pytest.raises(TypeError, match="strategy"):
        combined(LayerSelection, private)(strategy=FedAvg(), **selection, **FIXED)
    with pytest.raises(TypeError, match="layers"):
        combined(private, LayerSelection)(strategy=FedAvg(), **FIXED)
    with pytest.raises(TypeError, match="strategy"):
        LayerSelection(strategy=private(FedAvg(), **FIXED), **selection)


def test_replies_that_end_a_run_with_server_side_clipping():
    """Flower's wrapper divides by the norm of an update, and scales integers."""

    def unchanged(message):
        content = noisy_client(message)
        content["arrays"] = message.content["arrays"]
        return content

    name = "ServerSideFixedClipping"
    with pytest.raises(ZeroDivisionError):
        run(build(name), unchanged)
    counter = record({**ndarrays(float_weights()), "steps": np.array([5, 6])})
    with pytest.raises(TypeError, match="int64"):
        run(build(name), noisy_client, arrays=counter)


@pytest.mark.parametrize("checked", [False, True])
def test_a_wrapper_skips_a_round_in_which_a_client_fails(checked):
    """Flower's rule, also with checks: an error reply is handed on."""
    name = "ServerSideFixedClipping"
    fails = changing({(2, 3): WITH_NAN}, fail=True)
    history, *_ = run(build(name, "lowest", checked=checked), fails)
    assert history[1] == history[2]
    assert len({str(entry) for entry in history}) == 3


class Accountant:
    """The part of a privacy accountant that Flower's wrapper calls."""

    def __init__(self):
        self.config = PrivacyConfig(
            target_delta=1e-5,
            population_size=NODES,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
        self.events = []

    def compose(self, event):
        self.events.append(event)

    def get_privacy_spent(self):
        return SimpleNamespace(epsilon=1.0, delta=1e-5, num_releases=len(self.events))


def alike(message):
    """Accounted rounds need clients of the same weight."""
    content = noisy_client(message)
    content["metrics"]["num-examples"] = 1
    return content


def test_accounted_privacy_refuses_layer_selection():
    """Scores are of updates without noise; only FedAvg's mean is accounted for."""
    private = flower.DifferentialPrivacyServerSideFixedClipping
    for bases in ((LayerSelection, FedAvg), (LayerSelection,)):
        inner = combined(*bases)(layers=["a"])
        with pytest.raises(ValueError, match=r"FedAvg\.aggregate_train"):
            private(inner, **FIXED, accountant=Accountant())


@pytest.mark.parametrize("checked", [False, True])
def test_accounted_privacy_with_fixed_layers(checked):
    """Stock FedAvg, and the names in the run config: nothing is scored.

    With a rejected reply there is one too few, and the round is not released.
    """
    private = flower.DifferentialPrivacyServerSideFixedClipping
    bases = (CheckedReplies, private) if checked else (private,)
    accountant = Accountant()
    strategy = combined(*bases)(strategy=FedAvg(), **FIXED, accountant=accountant)
    client = changing({(2, 3): WITH_NAN}, alike) if checked else alike
    grid = FakeGrid(NODES, client)
    config = {FA_LAYERS: ["b"]}
    _, history = start(strategy, grid, float_weights(), ROUNDS, config)
    assert [grid.fa_layers(r) for r in (1, 2, 3)] == [["b"]] * 3
    assert len(accountant.events) == (2 if checked else 3)
    assert (history[1] == history[2]) == checked


PAGE = Path(__file__).resolve().parents[3] / "docs" / "robust.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
LAYERS_OF_THE_PAGE = ("conv2", "head")
NODES_OF_THE_PAGE = 10


def page_client(message):
    """Clip if the config says so; otherwise add a metric that is 1."""
    if "clipping_norm" in message.content["config"]:
        return client_of("ClientSideFixedClipping")(message)
    content = noisy_client(message)
    content["metrics"]["one"] = 1
    return content


def test_the_code_of_the_page_runs():
    """Block after block; every strategy in it sends names and aggregates."""
    rng = np.random.default_rng(1)
    arrays = {f"{x}.weight": rng.normal(size=4) for x in LAYERS_OF_THE_PAGE}
    page = {}
    for block in BLOCKS:
        exec(block.replace("from flfa.", "from "), page)
    strategies = {k: v for k, v in page.items() if isinstance(v, flower.Strategy)}
    assert len(strategies) == 9
    for name, strategy in strategies.items():
        config = page["train_config"] if name == "accounted" else {}
        grid = FakeGrid(NODES_OF_THE_PAGE, page_client)
        _, history = start(strategy, grid, record(arrays), 2, config)
        assert history[0] != history[1] != history[2], name
        assert len(grid.fa_layers(2)) == 1, name
        assert strategy.rejected == {}, name
