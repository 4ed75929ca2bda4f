"""``CheckedReplies`` under Flower's own loop: a bad reply is as if it had failed."""

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
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from strategies import CheckedReplies, FLFAScaffold, LayerSelection
from tests.unit.strategies.fakes import (
    FakeGrid,
    bits,
    changing,
    float_weights,
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
    "FLFA+FedAvgM": ((LayerSelection, FedAvgM), {**LAYERS, "server_momentum": 0.5}),
    "FedAdam": ((FedAdam,), {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.9}),
}


def build(name, *left, **arguments):
    bases, base_arguments = BASES[name]
    return type("Mine", (*left, *bases), {})(**base_arguments, **arguments)


def put(**arrays):
    def change(content):
        for name, array in arrays.items():
            content["arrays"][name.replace("_", ".")] = Array(np.asarray(array))

    return change


def metric(**metrics):
    def change(content):
        for name, value in metrics.items():
            content["metrics"][name.replace("_", "-")] = value

    return change


def rename(old, new):
    def change(content):
        content[new] = content.pop(old)

    return change


def cut(content):
    array = content["arrays"]["b.weight"]
    content["arrays"]["b.weight"] = Array(
        array.dtype, array.shape, array.stype, array.data[:-1]
    )


BAD = {
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


BAD_EVALUATIONS = {
    "no record": (lambda content: content.pop("metrics"), "metric records are none"),
    "two records": (
        lambda content: content.update(more=MetricRecord({"num-examples": 1})),
        "metric records are '.*', '.*'; it must have one",
    ),
    "nan": (metric(eval_loss=math.nan), "'eval-loss' is nan; it must be finite"),
    "nan in list": (metric(eval_loss=[0.5, math.inf]), r"'eval-loss' is \[0.5, inf\]"),
    "no weight": (lambda c: c["metrics"].pop("num-examples"), "no metric 'num-ex"),
    "weight 0": (metric(num_examples=0), "'num-examples' is 0; it must be above 0"),
    "heavy": (metric(num_examples=101), "must be at most 100"),
    "metric": (metric(more=1), "unlike most replies, .*'more' unexpected"),
    "length": (metric(eval_loss=[0.5]), r"'eval-loss\[1\]' unexpected"),
    "name": (rename("metrics", "figures"), "unlike most replies, .*'figures'"),
}


def schedule(cases):
    """Return round and node of each case: three a round, beside two good nodes."""
    places = [(r, node) for r in range(1, 6) for node in ((1, 2, 5), (5, 3, 4))[r % 2]]
    return dict(zip(places, cases, strict=False))


def run(strategy, client, arrays=None, rounds=ROUNDS):
    """Return models and train metrics of each round, and the grid."""
    if isinstance(strategy, FedAvg):
        strategy.fraction_evaluate = 0.0
    grid = FakeGrid(NODES, client)
    result, history = start(strategy, grid, arrays or float_weights(), rounds)
    metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
    return history, metrics, grid


def evaluations(strategy, client, rounds=ROUNDS):
    """Return the aggregated evaluation of each round."""
    result, _ = start(strategy, FakeGrid(NODES, client), float_weights(), rounds)
    return {k: dict(v) for k, v in result.evaluate_metrics_clientapp.items()}


def assert_logged(caplog, subject, cases, places):
    """Check that each case is logged once, with its reason; return the reasons."""
    lines = [entry.getMessage() for entry in caplog.records]
    lines = [line for line in lines if "is rejected" in line]
    assert len(lines) == len(places)
    reasons = {}
    for (server_round, node), case in places.items():
        opening = f"round {server_round}: {subject} of node {node} is rejected: "
        (line,) = (line for line in lines if line.startswith(opening))
        assert re.search(cases[case][1], line), line
        reasons[server_round, node] = line.removeprefix(opening)
    return reasons


@pytest.mark.parametrize("name", ["FedAvg", "FLFA+FedAvgM", "FedAdam"])
def test_bad_replies_are_as_if_they_had_failed(name, caplog):
    """Bit for bit: models, metrics, layers."""
    places = schedule(BAD)
    assert len(places) == len(BAD)
    changes = {place: BAD[case][0] for place, case in places.items()}
    want = run(build(name), changing(changes, fail=True))
    strategy = build(name, CheckedReplies)
    caplog.clear()
    with caplog.at_level("WARNING", "flwr"):
        got = run(strategy, changing(changes))
    assert got[:2] == want[:2]
    assert len({str(entry) for entry in got[0]}) == 1 + ROUNDS
    if "FLFA" in name:
        layers = [[x[2].fa_layers(r) for r in range(1, 6)] for x in (got, want)]
        assert layers[0] == layers[1]
    reasons = assert_logged(caplog, "the reply", BAD, places)
    last = {node: text for (r, node), text in reasons.items() if r == ROUNDS}
    assert strategy.rejected == last
    assert len(last) == 3


def test_bad_evaluations_are_as_if_they_had_failed(caplog):
    places = schedule(BAD_EVALUATIONS)
    changes = {place: BAD_EVALUATIONS[case][0] for place, case in places.items()}
    kind = MessageType.EVALUATE
    strategy = build("FLFA", CheckedReplies, max_examples=100)
    with caplog.at_level("WARNING", "flwr"):
        got = evaluations(strategy, changing(changes, kind=kind))
    want = evaluations(build("FLFA"), changing(changes, kind=kind, fail=True))
    assert got == want
    assert set(got) == {1, 2, 3, 4, 5}
    reasons = assert_logged(caplog, "the evaluation", BAD_EVALUATIONS, places)
    last = {node: text for (r, node), text in reasons.items() if r == ROUNDS}
    assert strategy.rejected_evaluations == last
    assert not last
    assert strategy.rejected == {}


def in_types_of_the_model(dtypes):
    """Return clients that reply in the types of their model, as torch does."""

    def client(message):
        content = noisy_client(message)
        if message.metadata.message_type == MessageType.TRAIN:
            arrays = ndarrays(content["arrays"])
            content["arrays"] = record(
                {k: v.astype(dtypes.get(k, np.float32)) for k, v in arrays.items()}
            )
        return content

    return client


@pytest.mark.parametrize("name", ["FedAvg", "FLFA+FedAvgM", "FedAdam"])
def test_types_that_averaging_has_changed(name):
    """A counter is averaged to a float, and Flower's Adam is in double precision.

    Clients reply in the types of their models or in those they receive: both are good,
    and then the result is the base's, bit for bit.
    """
    arrays = record({**ndarrays(float_weights()), "steps": np.array(5, np.int64)})
    for client in (in_types_of_the_model({"steps": np.int64}), noisy_client):
        want = run(build(name), client, arrays, rounds=2)
        got = run(strategy := build(name, CheckedReplies), client, arrays, rounds=2)
        assert got[:2] == want[:2]
        assert strategy.rejected == {}
    assert {dtype for _, dtype, _, _ in want[0][-1]} != {"float32", "int64"}
    half = in_types_of_the_model({"steps": np.int64, "a.bias": np.float16})
    run(strategy, half, arrays, rounds=1)
    assert len(strategy.rejected) == NODES


def test_lists_of_metrics_are_averaged_by_flower():
    def client(message):
        content = noisy_client(message)
        content["metrics"]["counts"] = [1, message.metadata.dst_node_id]
        return content

    strategy = build("FedAvg", CheckedReplies)
    got = evaluations(strategy, client, 1)
    assert got == evaluations(FedAvg(), client, 1)
    assert len(got[1]["counts"]) == 2
    got = run(strategy, client, rounds=2)
    assert got[1] == run(FedAvg(), client, rounds=2)[1]
    assert strategy.rejected == {}
    run(strategy, changing({(1, 2): metric(counts=[1, 2, 3])}, client), rounds=1)
    assert set(strategy.rejected) == {2}
    assert "'counts[2]' missing, 'counts[3]' unexpected" in strategy.rejected[2]


@pytest.mark.parametrize("odd", [(1, 2), (4, 5)])
def test_a_tie_does_not_depend_on_the_order_of_replies(odd):
    """Two nodes have a metric more, two have not: the names decide."""
    strategy = build("FedAvg", CheckedReplies)
    grid = FakeGrid(NODES, changing({(1, node): metric(more=1) for node in odd}))
    grid.nodes.remove(3)
    start(strategy, grid, float_weights(), 1)
    assert sorted(strategy.rejected) == sorted({1, 2, 4, 5} - set(odd))


def test_bad_replies_have_no_vote():
    """Three with NaN and another metric do not outvote two good ones."""

    def change(content):
        BAD["nan"][0](content)
        content["metrics"]["more"] = 1

    strategy = build("FedAvg", CheckedReplies)
    run(strategy, changing({(1, node): change for node in (1, 3, 5)}), rounds=1)
    assert sorted(strategy.rejected) == [1, 3, 5]


def test_a_bad_reply_under_the_id_of_another_node():
    """It is rejected; the reply of the node itself counts."""
    strategy = build("FedAvg", CheckedReplies)
    grid = FakeGrid(3, noisy_client)
    messages = strategy.configure_train(1, float_weights(), ConfigRecord(), grid)
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


def test_limits_that_are_refused():
    for name in ("max_examples", "max_update_norm"):
        for limit in (0, -1.0, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be above 0, not "):
                build("FedAvg", CheckedReplies, **{name: limit})


def test_keys_of_the_base():
    keys = {"weighted_by_key": "images", "arrayrecord_key": "model"}

    def client(message):
        arrays, config = message.content["model"], message.content["config"]
        renamed = Message(
            RecordDict({"arrays": arrays, "config": config}),
            message.metadata.dst_node_id,
            message.metadata.message_type,
        )
        content = noisy_client(over_the_wire(renamed))
        content["metrics"]["images"] = content["metrics"].pop("num-examples")
        return content

    want = run(FedAvg(**keys), client, rounds=2)
    strategy = build("FedAvg", CheckedReplies, **keys)
    assert run(strategy, client, rounds=2)[:2] == want[:2]
    run(strategy, changing({(1, 3): metric(images=0)}, client), rounds=1)
    assert strategy.rejected == {3: "its metric 'images' is 0; it must be above 0"}


@pytest.mark.parametrize("length", [0.0, -0.25, None])
def test_a_metric_that_the_method_divides_by(length):
    """SCAFFOLD's step length."""

    def change(content):
        del content["metrics"]["step-length"]
        if length is not None:
            content["metrics"]["step-length"] = length

    def client(message):
        content = noisy_client(message)
        content["metrics"]["step-length"] = 0.5
        return content

    changes = dict.fromkeys([(1, 3), (2, 1), (2, 2)], change)
    arguments = {**LAYERS, "num_clients": NODES}
    strategy = type("Mine", (CheckedReplies, FLFAScaffold), {})(**arguments)
    got = run(strategy, changing(changes, client), rounds=2)
    failing = changing(changes, client, fail=True)
    assert got[:2] == run(FLFAScaffold(**arguments), failing, rounds=2)[:2]
    assert sorted(strategy.rejected) == [1, 2]


@pytest.mark.parametrize("side", ["Server", "Client"])
def test_a_wrapper_continues_after_a_round_without_a_good_reply(side):
    """Wrappers that adapt divide by the number of replies, and would end the run."""

    def client(message):
        content = noisy_client(message)
        if message.metadata.message_type == MessageType.TRAIN:
            content["metrics"]["norm_bit"] = 1  # what a client that clips reports
        return content

    base = getattr(flower, f"DifferentialPrivacy{side}SideAdaptiveClipping")
    strategy = type("Mine", (CheckedReplies, base), {})(
        strategy=FedAvg(),
        num_sampled_clients=NODES,
        noise_multiplier=0.2,
        clipped_count_stddev=1.0,
        initial_clipping_norm=2.0,
    )
    changes = {(2, node): BAD["nan"][0] for node in range(1, 6)}
    history, metrics, _ = run(strategy, changing(changes, client), rounds=3)
    assert history[1] == history[2]
    assert len({str(entry) for entry in history}) == 3
    assert set(metrics) == {1, 3}
    kind = MessageType.EVALUATE
    changes = {(2, 4): metric(num_examples=-1)}
    got = evaluations(strategy, changing(changes, client, kind=kind), 2)
    want = evaluations(FedAvg(), changing(changes, client, kind=kind, fail=True), 2)
    assert got == want


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_without_a_valid_reply_the_base_is_not_called(kind, caplog):
    """The errors are logged all the same."""

    class NeverCalled(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise AssertionError

        def aggregate_evaluate(self, server_round, replies):
            raise AssertionError

    strategy = type("Mine", (CheckedReplies, NeverCalled), {})()
    grid = FakeGrid(2, lambda message: Error(code=2, reason="the battery is empty"))
    configure = getattr(strategy, f"configure_{kind}")
    messages = configure(3, float_weights(), ConfigRecord(), grid)
    with caplog.at_level("INFO", "flwr"):
        got = getattr(strategy, f"aggregate_{kind}")(3, grid.send_and_receive(messages))
    assert got == ((None, None) if kind == "train" else None)
    for node in (1, 2):
        assert f"round 3: node {node} has failed: the battery is empty" in caplog.text


def test_arrays_beside_an_evaluation_are_not_checked():
    """Nothing reads them, whatever they are."""

    def with_arrays(content):
        content["mine"] = record({"x": [math.nan]})

    strategy = build("FedAvg", CheckedReplies)
    client = changing({(1, 1): with_arrays}, kind=MessageType.EVALUATE)
    assert evaluations(strategy, client, 1) == evaluations(FedAvg(), noisy_client, 1)


def test_alone_it_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        CheckedReplies()
    assert issubclass(CheckedReplies, flower.Strategy)
