"""``CheckedReplies`` under Flower's own loop: bad replies are as if they had failed."""

import math
import re

import numpy as np
import pytest
from flwr.app import (
    Array,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from strategies import CheckedReplies, FLFAScaffold, LayerSelection
from tests.unit.strategies.fakes import (
    FakeGrid,
    bits,
    ndarrays,
    noisy_client,
    over_the_wire,
    record,
    start,
)

NODES, ROUNDS = 5, 5
LAYERS = {"layers": ["a", "b"]}
BASES = {
    "FedAvg": ((FedAvg,), {}),
    "FLFA": ((LayerSelection, FedAvg), LAYERS),
    "FedAvgM": ((FedAvgM,), {"server_momentum": 0.5}),
    "FLFA+FedAvgM": ((LayerSelection, FedAvgM), {**LAYERS, "server_momentum": 0.5}),
    "FedAdam": ((FedAdam,), {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.9}),
    "FLFA+FedAdam": ((LayerSelection, FedAdam), {**LAYERS, "eta": 0.1, "beta_1": 0.9}),
}
ALL = pytest.mark.parametrize("name", BASES)


def weights():
    rng = np.random.default_rng(5)
    return record(
        {
            name: rng.normal(size=size).astype(np.float32)
            for name, size in {"a.weight": (3, 2), "a.bias": 3, "b.weight": 7}.items()
        }
    )


def build(name, *left, **further):
    bases, kwargs = BASES[name]
    return type("Mine", (*left, *bases), {})(**kwargs, **further)


def put(**arrays):
    def spoil(content):
        for name, array in arrays.items():
            content["arrays"][name.replace("_", ".")] = Array(np.asarray(array))

    return spoil


def metric(**metrics):
    def spoil(content):
        for name, value in metrics.items():
            content["metrics"][name.replace("_", "-")] = value

    return spoil


def rename(old, new):
    def spoil(content):
        content[new] = content.pop(old)

    return spoil


def cut(content):
    array = content["arrays"]["b.weight"]
    content["arrays"]["b.weight"] = Array(
        array.dtype, array.shape, array.stype, array.data[:-1]
    )


SPOILED = {
    "nan": (put(a_bias=np.float32([1, 2, math.nan])), "'a.bias' has 1 values"),
    "shape": (put(a_bias=np.zeros(1, "f4")), r"\(1,\), not \(3,\)"),
    "bytes": (cut, "bytes of values, not (28|56)"),
    "no array": (lambda content: content["arrays"].pop("b.weight"), "missing"),
    "more arrays": (put(c_bias=np.zeros(3)), "'c.bias' unexpected"),
    "weight": (metric(num_examples=-7), "'num-examples' is -7"),
    "heavy": (metric(num_examples=1e308), "'num-examples' is 1e"),
    "weights": (metric(num_examples=[1, 2]), "'num-examples' is "),
    "loss": (metric(train_loss=math.inf), "'train-loss' is inf"),
    "metric": (metric(more=1), "unlike most replies, .* 'more' unexpected"),
    "no metric": (lambda content: content["metrics"].pop("train-loss"), "unlike most"),
    "list": (metric(train_loss=[0.5]), r"unlike most .*'train-loss\[1\]' unexpected"),
    "no metrics": (lambda content: content.pop("metrics"), "records are none"),
    "name": (rename("metrics", "figures"), "unlike most replies, .*'figures'"),
    "arrays": (rename("arrays", "weights"), "unlike most replies, .*'weights'"),
}


# Every kind once, by round and node: three a round, and two that are good and alike.
PLAN = dict(
    zip(
        [(r, node) for r in range(1, 6) for node in ((1, 2, 5), (5, 3, 4))[r % 2]],
        SPOILED,
        strict=True,
    )
)


def spoilt(bad, client=noisy_client, *, fail=False):
    """Clients that spoil what they send as ``bad`` says, or fail instead.

    By round and node.
    """

    def answer(message):
        content = client(message)
        if message.metadata.message_type == MessageType.TRAIN:
            server_round = message.content["config"]["server-round"]
            if how := bad.get((server_round, message.metadata.dst_node_id)):
                if fail:
                    return Error(code=2, reason="planned")
                how(content)
        return content

    return answer


def run(strategy, client, arrays=None, rounds=ROUNDS):
    grid = FakeGrid(NODES, client)
    result, history = start(strategy, grid, arrays or weights(), rounds)
    metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
    return history, metrics, grid


@ALL
def test_bad_replies_are_as_if_they_had_failed(name, caplog):
    """Bit for bit: models, metrics, layers."""
    bad = {place: SPOILED[kind][0] for place, kind in PLAN.items()}
    want = run(build(name), spoilt(bad, fail=True))
    strategy = build(name, CheckedReplies)
    with caplog.at_level("WARNING", "flwr"):
        caplog.clear()
        got = run(strategy, spoilt(bad))
    assert got[:2] == want[:2]
    assert len({str(entry) for entry in got[0]}) == 1 + ROUNDS
    if "FLFA" in name:
        layers = [[x[2].fa_layers(r) for r in range(1, 6)] for x in (got, want)]
        assert layers[0] == layers[1]
    told = [entry.getMessage() for entry in caplog.records]
    told = [line for line in told if "is rejected" in line]
    assert len(told) == len(PLAN) == 15
    for (server_round, node), kind in PLAN.items():
        opening = f"round {server_round}: the reply of node {node} is rejected: "
        (line,) = (line for line in told if line.startswith(opening))
        assert re.search(SPOILED[kind][1], line), line
        if server_round == ROUNDS:
            assert strategy.rejected[node] == line.removeprefix(opening)
    assert len(strategy.rejected) == 3


@ALL
def test_good_replies_are_the_bases_bit_for_bit(name):
    got = run(strategy := build(name, CheckedReplies), noisy_client)
    want = run(build(name), noisy_client)
    assert got[:2] == want[:2]
    assert strategy.rejected == {}


@ALL
def test_where_none_is_good_the_model_stays(name):
    """All replies of rounds 1 and 3 are bad, of which the others know nothing."""
    all_of = {(r, node): SPOILED["nan"][0] for r in (1, 3) for node in range(1, 6)}
    client = spoilt(all_of)
    history, metrics, _ = run(strategy := build(name, CheckedReplies), client)
    assert history[0] == history[1] == bits(weights())
    assert history[2] == history[3]
    assert len({str(entry) for entry in history}) == 4
    assert set(metrics) == {2, 4, 5}
    assert strategy.rejected == {}


@pytest.mark.parametrize("kind", ["no array", "more arrays", "weights"])
def test_without_it_one_client_ends_the_run(kind):
    """What it is for: Flower alone stops."""
    client = spoilt({(2, 3): SPOILED[kind][0]})
    with pytest.raises(InconsistentMessageReplies):
        run(FedAvg(), client)


def test_without_it_one_nan_is_in_the_model_for_good():
    history, _, _ = run(FedAvg(), spoilt({(2, 3): SPOILED["nan"][0]}))
    entries = {name: np.frombuffer(data, "f4") for name, _, _, data in history[-1]}
    assert np.isnan(entries["a.bias"]).any()


def test_failures_are_handed_on():
    """The base logs them, and knows how many there were."""
    seen = []

    class Counts(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.append([reply.has_error() for reply in replies])
            return super().aggregate_train(server_round, replies)

    strategy = type("Mine", (CheckedReplies, Counts), {})()
    run(strategy, spoilt({(1, 1): cut, (1, 2): cut}, fail=True), rounds=1)
    assert sorted(seen[0]) == [False, False, False, True, True]
    assert strategy.rejected == {}


def like_torch(dtypes):
    """Clients that answer in the types of their own model, whatever they were sent."""

    def client(message):
        content = noisy_client(message)
        if message.metadata.message_type == MessageType.TRAIN:
            arrays = ndarrays(content["arrays"])
            content["arrays"] = record(
                {k: v.astype(dtypes.get(k, np.float32)) for k, v in arrays.items()}
            )
        return content

    return client


@ALL
def test_types_that_averaging_has_changed(name):
    """A counter is averaged to a float, and Flower's Adam is in double precision.

    Clients go on in the types of their models, or in those they get: both are good.
    """
    arrays = record({**ndarrays(weights()), "steps": np.array(5, np.int64)})
    own = like_torch({"steps": np.int64})
    for client in (own, noisy_client):
        want = run(build(name), client, arrays)
        got = run(strategy := build(name, CheckedReplies), client, arrays)
        assert got[:2] == want[:2]
        assert strategy.rejected == {}
    assert {dtype for _, dtype, _, _ in want[0][-1]} != {"float32", "int64"}
    half = like_torch({"steps": np.int64, "a.bias": np.float16})
    run(strategy, half, arrays, rounds=1)
    assert len(strategy.rejected) == NODES


def test_lists_of_metrics_are_flowers_to_average():
    def client(message):
        content = noisy_client(message)
        if message.metadata.message_type == MessageType.TRAIN:
            content["metrics"]["counts"] = [1, message.metadata.dst_node_id]
        return content

    got = run(strategy := build("FedAvg", CheckedReplies), client)
    assert got[1] == run(FedAvg(), client)[1]
    assert strategy.rejected == {}
    run(strategy, spoilt({(5, 2): metric(counts=[1, 2, 3])}, client))
    assert set(strategy.rejected) == {2}
    assert "'counts[2]' missing, 'counts[3]' unexpected" in strategy.rejected[2]


def test_two_forms_that_are_as_common():
    """Which one counts depends on the names, not on who is first: 'more' does not."""
    for odd in ((1, 2), (4, 5)):
        client = spoilt({(1, node): metric(more=1) for node in odd})
        strategy = build("FedAvg", CheckedReplies)
        grid = FakeGrid(NODES, client)
        grid.nodes.remove(3)
        start(strategy, grid, weights(), 1)
        assert sorted(strategy.rejected) == sorted({1, 2, 4, 5} - set(odd))


def test_bad_replies_have_no_vote():
    """Three with NaN and another metric do not outvote two good ones."""

    def how(content):
        SPOILED["nan"][0](content)
        content["metrics"]["more"] = 1

    strategy = build("FedAvg", CheckedReplies)
    run(strategy, spoilt({(1, node): how for node in (1, 3, 5)}), rounds=1)
    assert sorted(strategy.rejected) == [1, 3, 5]


def test_a_reply_that_bears_the_name_of_another_node():
    """It does not count; that of the node itself does."""
    strategy = build("FedAvg", CheckedReplies)
    grid = FakeGrid(3, noisy_client)
    messages = strategy.configure_train(1, weights(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    want, _ = FedAvg().aggregate_train(1, [over_the_wire(r) for r in replies[1:]])
    replies[0].metadata.__dict__["_src_node_id"] = replies[1].metadata.src_node_id
    replies[0].content["arrays"]["a.bias"] = Array(np.float32([math.nan] * 3))
    got, _ = strategy.aggregate_train(1, iter(replies))
    assert bits(got) == bits(want)


def test_limits():
    """Weights are 11 to 15; updates have a norm of 4.1 and more."""
    strategy = build("FedAvg", CheckedReplies, max_examples=13)
    run(strategy, noisy_client, rounds=1)
    assert sorted(strategy.rejected) == [4, 5]
    assert "at most 13" in strategy.rejected[4]
    strategy = build("FLFA", CheckedReplies, max_update_norm=1e-3)
    history, *_ = run(strategy, noisy_client, rounds=1)
    assert len(strategy.rejected) == NODES
    assert history[0] == history[1]
    assert strategy.scores == {}


@pytest.mark.parametrize("name", ["max_examples", "max_update_norm"])
@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_limits_that_cannot_be(name, limit):
    with pytest.raises(ValueError, match=f"{name} must be above 0, not {limit!r}"):
        build("FedAvg", CheckedReplies, **{name: limit})


def test_keys_of_the_base():
    keys = {"weighted_by_key": "images", "arrayrecord_key": "model"}

    def client(message):
        content = noisy_client(
            over_the_wire(
                Message(
                    RecordDict({"arrays": message.content["model"], **config(message)}),
                    message.metadata.dst_node_id,
                    message.metadata.message_type,
                )
            )
        )
        metrics = content["metrics"]
        metrics["images"] = metrics.pop("num-examples")
        return content

    def config(message):
        return {"config": message.content["config"]}

    want = run(FedAvg(**keys), client)
    strategy = build("FedAvg", CheckedReplies, **keys)
    got = run(strategy, client)
    assert got[:2] == want[:2]
    run(strategy, spoilt({(5, 3): metric(images=0)}, client))
    assert strategy.rejected == {3: "its metric 'images' is 0; it must be above 0"}


@pytest.mark.parametrize("length", [0.0, -0.25, None])
def test_a_metric_the_method_divides_by(length):
    """SCAFFOLD's step length."""

    def how(content):
        if length is None:
            del content["metrics"]["step-length"]
        else:
            content["metrics"]["step-length"] = length

    def client(message):
        content = noisy_client(message)
        content["metrics"]["step-length"] = 0.5
        return content

    bad = dict.fromkeys([(2, 3), (5, 1), (5, 2)], how)
    own = {**LAYERS, "num_clients": NODES}
    strategy = type("Mine", (CheckedReplies, FLFAScaffold), {})(**own)
    got = run(strategy, spoilt(bad, client))
    want = run(FLFAScaffold(**own), spoilt(bad, client, fail=True))
    assert got[:2] == want[:2]
    assert sorted(strategy.rejected) == [1, 2]


ADAPTIVE = {"noise_multiplier": 0.2, "clipped_count_stddev": 1.0}
WRAPPERS = {
    "ServerSideAdaptiveClipping": {**ADAPTIVE, "initial_clipping_norm": 2.0},
    "ClientSideAdaptiveClipping": {**ADAPTIVE, "initial_clipping_norm": 2.0},
    "ServerSideFixedClipping": {"noise_multiplier": 0.5, "clipping_norm": 2.0},
    "ClientSideFixedClipping": {"noise_multiplier": 0.5, "clipping_norm": 2.0},
}


def with_norm_bit(message):
    """What a client says that has clipped by itself."""
    content = noisy_client(message)
    if message.metadata.message_type == MessageType.TRAIN:
        content["metrics"]["norm_bit"] = 1
    return content


@pytest.mark.parametrize("name", WRAPPERS)
def test_where_none_is_good_a_wrapper_goes_on(name):
    """Those that adapt divide by the number of replies, and would end the run."""
    base = getattr(flower, f"DifferentialPrivacy{name}")
    strategy = type("Mine", (CheckedReplies, base), {})(
        strategy=FedAvg(), num_sampled_clients=NODES, **WRAPPERS[name]
    )
    all_of = {(2, node): SPOILED["nan"][0] for node in range(1, 6)}
    history, metrics, _ = run(strategy, spoilt(all_of, with_norm_bit), rounds=3)
    assert history[1] == history[2]
    assert len({str(entry) for entry in history}) == 3
    assert set(metrics) == {1, 3}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_where_none_is_left_the_base_is_not_asked(kind, caplog):
    """And what had failed is logged all the same."""

    class NotAsked(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise AssertionError

        def aggregate_evaluate(self, server_round, replies):
            raise AssertionError

    strategy = type("Mine", (CheckedReplies, NotAsked), {})()
    grid = FakeGrid(2, lambda message: Error(code=2, reason="the battery is empty"))
    configure = getattr(strategy, f"configure_{kind}")
    messages = configure(3, weights(), ConfigRecord(), grid)
    with caplog.at_level("INFO", "flwr"):
        got = getattr(strategy, f"aggregate_{kind}")(3, grid.send_and_receive(messages))
    assert got == ((None, None) if kind == "train" else None)
    for node in (1, 2):
        assert f"round 3: node {node} has failed: the battery is empty" in caplog.text


def two_records(content):
    content["more"] = MetricRecord({"num-examples": 1})


BAD_EVALUATIONS = {
    "no record": (lambda content: content.pop("metrics"), "metric records are none"),
    "two records": (two_records, "metric records are '.*', '.*'; it must have one"),
    "nan": (metric(eval_loss=math.nan), "'eval-loss' is nan; it must be finite"),
    "list": (metric(eval_loss=[0.5, math.inf]), r"'eval-loss' is \[0.5, inf\]"),
    "no weight": (lambda c: c["metrics"].pop("num-examples"), "no metric 'num-ex"),
    "weight 0": (metric(num_examples=0), "'num-examples' is 0; it must be above 0"),
    "negative": (metric(num_examples=-3), "'num-examples' is -3; it must be above 0"),
    "weights": (metric(num_examples=[1]), "must be a finite number"),
    "heavy": (metric(num_examples=101), "must be at most 100"),
    "metric": (metric(more=1), "unlike most replies, .*'more' unexpected"),
    "no metric": (lambda c: c["metrics"].pop("eval-loss"), "'eval-loss' missing"),
    "lengths": (metric(eval_loss=[0.5]), r"'eval-loss\[1\]' unexpected"),
    "name": (rename("metrics", "figures"), "unlike most replies, .*'figures'"),
}


def evaluating(bad, *, fail=False):
    """Clients that spoil what they have evaluated as ``bad`` says, or fail instead."""

    def answer(message):
        content = noisy_client(message)
        place = message.content["config"]["server-round"], message.metadata.dst_node_id
        is_evaluation = message.metadata.message_type == MessageType.EVALUATE
        if is_evaluation and (how := bad.get(place)):
            if fail:
                return Error(code=2, reason="planned")
            how(content)
        return content

    return answer


def evaluations(strategy, client):
    result, _ = start(strategy, FakeGrid(NODES, client), weights(), 2)
    return {k: dict(v) for k, v in result.evaluate_metrics_clientapp.items()}


@pytest.mark.parametrize("kind", BAD_EVALUATIONS)
def test_a_bad_evaluation_is_as_if_it_had_failed(kind, caplog):
    how, reason = BAD_EVALUATIONS[kind]
    bad = {(1, 5): how, (2, 2): how}
    strategy = build("FLFA", CheckedReplies, max_examples=100)
    with caplog.at_level("WARNING", "flwr"):
        got = evaluations(strategy, evaluating(bad))
    assert got == evaluations(build("FLFA"), evaluating(bad, fail=True))
    assert set(got) == {1, 2}
    assert re.search(reason, strategy.rejected_evaluations.pop(2))
    assert strategy.rejected_evaluations == strategy.rejected == {}
    for server_round, node in bad:
        told = f"round {server_round}: the evaluation of node {node} is rejected: "
        assert re.search(told + ".*" + reason, caplog.text)


@pytest.mark.parametrize("kind", ["no record", "metric", "no weight", "name"])
def test_without_it_one_evaluation_ends_the_run(kind):
    with pytest.raises(InconsistentMessageReplies):
        evaluations(FedAvg(), evaluating({(2, 2): BAD_EVALUATIONS[kind][0]}))


@ALL
def test_good_evaluations_are_the_bases_bit_for_bit(name):
    strategy = build(name, CheckedReplies)
    assert evaluations(strategy, noisy_client) == evaluations(build(name), noisy_client)
    assert strategy.rejected_evaluations == {}


def test_lists_of_evaluations_are_flowers_to_average():
    def client(message):
        content = noisy_client(message)
        if message.metadata.message_type == MessageType.EVALUATE:
            content["metrics"]["counts"] = [1, message.metadata.dst_node_id]
        return content

    got = evaluations(build("FedAvg", CheckedReplies), client)
    assert got == evaluations(FedAvg(), client)
    assert len(got[1]["counts"]) == 2


def test_where_no_evaluation_is_good_there_is_none():
    all_of = {(1, node): metric(eval_loss=math.nan) for node in range(1, 6)}
    strategy = build("FedAvg", CheckedReplies)
    got = evaluations(strategy, evaluating(all_of))
    want = evaluations(FedAvg(), noisy_client)
    assert got == {2: want[2]}


def test_arrays_beside_an_evaluation_are_nobodys_business():
    """Nothing reads them, whatever they are."""

    def with_arrays(content):
        content["mine"] = record({"x": [math.nan]})

    strategy = build("FedAvg", CheckedReplies)
    got = evaluations(strategy, evaluating({(1, 1): with_arrays}))
    assert got == evaluations(FedAvg(), noisy_client)


def test_a_wrapper_evaluates_with_the_strategy_inside():
    base = flower.DifferentialPrivacyServerSideFixedClipping
    strategy = type("Mine", (CheckedReplies, base), {})(
        strategy=FedAvg(),
        noise_multiplier=0.5,
        clipping_norm=2.0,
        num_sampled_clients=5,
    )
    bad = {(2, 4): metric(num_examples=-1)}
    got = evaluations(strategy, evaluating(bad))
    assert got == evaluations(FedAvg(), evaluating(bad, fail=True))


def test_alone_it_aggregates_nothing():
    """It is a part of a strategy, and Python says so."""
    with pytest.raises(TypeError, match="abstract"):
        CheckedReplies()
    assert issubclass(CheckedReplies, flower.Strategy)
