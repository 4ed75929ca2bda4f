"""``problem_of``: which replies it accepts, and how it describes the others."""

import ast
import io
import math
import os
import re
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from strategies import ReplyRules, problem_of
from tests.unit.strategies.fakes import FakeGrid, bits, over_the_wire, record

METRICS = {"num-examples": 12, "train-loss": 0.5}
NUMPY = "numpy.ndarray"


def model():
    return {
        "a.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
        "a.bias": np.arange(3, dtype=np.float32),
        "steps": np.array(7, np.int64),
    }


SENT = record(model())


def received(content, wire=True):
    """Return a reply as the server receives it."""
    FakeGrid(1, lambda message: None)
    reply = Message(content, reply_to=Message(RecordDict(), 1, "train"))
    return over_the_wire(reply) if wire else reply


def reply(arrays=None, metrics=None, wire=True, **records):
    """Return a good reply in which the given arrays and metrics are replaced."""
    replaced = {**SENT}
    for name, array in (arrays or {}).items():
        replaced[name] = array if isinstance(array, Array) else Array(np.asarray(array))
    content = {
        "arrays": ArrayRecord(replaced),
        "metrics": MetricRecord({**METRICS, **(metrics or {})}),
    }
    return received(RecordDict({**content, **records}), wire)


def weight_with(**fields):
    """Return the array a.weight with some of its metadata or bytes replaced."""
    good = SENT["a.weight"]
    metadata = {"dtype": good.dtype, "shape": good.shape, "stype": NUMPY}
    return {"a.weight": Array(**{**metadata, "data": good.data, **fields})}


def saved(header, values=bytes(24), version=(1, 0), length=None):
    """Return bytes in NumPy's format with a header of one's choice."""
    text = header if isinstance(header, bytes) else header.encode("latin1")
    size = 4 if version > (1, 0) else 2
    length = len(text) if length is None else length
    return (
        b"\x93NUMPY" + bytes(version) + length.to_bytes(size, "little") + text + values
    )


def header(descr="'<f4'", order="False", shape="(3, 2)", length=0):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    return f"{text:{max(length - 1, 0)}}\n"


def weight_like(*args, **kwargs):
    return weight_with(data=saved(*args, **kwargs))


def pickled():
    """Return an array of objects: NumPy saves a pickle, which could run anything."""

    class Bomb:
        def __reduce__(self):
            return os._exit, (99,)

    file = io.BytesIO()
    np.save(file, np.array([Bomb()], object), allow_pickle=True)
    return file.getvalue()


FORTRAN = np.asfortranarray(model()["a.weight"] + 1)
GOOD = {
    "the model that was sent": reply(),
    "small": reply({"a.bias": np.float32([-0.0, 1e-45, 0])}),
    "large": reply({"a.bias": np.float32([3.4e38, -3.4e38, 0])}),
    "fraction": reply(metrics={"num-examples": 5e-324}),
    "most examples": reply(metrics={"num-examples": 2**53}),
    "Fortran order": reply({"a.weight": FORTRAN}),
    "longest header": reply(weight_like(header(length=10_000))),
    "config": reply(more=ConfigRecord({"note": "hello"}), config=ConfigRecord()),
}


@pytest.mark.parametrize("case", GOOD)
def test_good_replies(case):
    assert problem_of(GOOD[case], SENT, ReplyRules()) is None


@pytest.mark.parametrize("shape", [(), (0, 3), (1,) * 32], ids=str)
@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", ">f4", "c8", "i8", "u1", "?", "longdouble"]
)
def test_the_sent_arrays_are_accepted_in_any_type_and_shape(dtype, shape):
    sent = record({"x": np.ones(shape, dtype)})
    good = received(RecordDict({"arrays": sent, "metrics": MetricRecord(METRICS)}))
    assert problem_of(good, sent, ReplyRules(max_norm=1e-9)) is None


ARRAYS = {
    "nan": ({"a.bias": np.float32([1, math.nan, 3])}, "'a.bias' has 1 values .*finite"),
    "inf": ({"a.bias": np.float32([-math.inf, 0, math.inf])}, "'a.bias' has 2 values"),
    "broadcast": ({"a.bias": np.zeros(1, "f4")}, r"the shape \(1,\), not \(3,\)"),
    "double": ({"a.bias": np.zeros(3, "f8")}, "type 'float64', not 'float32'"),
    "complex": ({"a.bias": np.zeros(3, "c8")}, "type 'complex64', not 'float32'"),
    "swapped": ({"a.bias": np.zeros(3, ">f4")}, "type '>f4', not 'float32'"),
    "kind": (weight_with(stype="pickle"), "the kind 'pickle', not 'numpy.ndarray'"),
    "said shape": (weight_with(shape=(10**9, 10**9)), r"\(1000000000, 1000000000\)"),
    "said type": (weight_with(dtype="object"), "type 'object', not 'float32'"),
    "empty": (weight_with(data=b""), "begins with b'', not with NumPy's"),
    "magic only": (weight_with(data=saved("")[:8]), "the header b'', not"),
    "pickle": (weight_with(data=pickled()), r"the header .*'\|O'"),
    "format 2": (weight_like(header(), version=(2, 0)), "begins with .*x02"),
    "own shape": (weight_like(header(shape="(3, 1)"), bytes(12)), r"header .*\(3, 1\)"),
    "huge": (weight_like(header(shape="(9999999999999,)")), r"header .*9999999999999"),
    "truth": (weight_like(header(shape="(3, True)")), "header .*True"),
    "own type": (weight_like(header("'<f8'"), bytes(48)), "header .*<f8.* not .*<f4"),
    "python 2": (weight_like(header(shape="(3L, 2L)")), "header .*3L"),
    "deep": (weight_like("(" * 9000), r"header b'\(\(\(\(.*\.\.\., not"),
    "blanks at the end": (weight_like(header() + "  "), r'header .*\\n", not'),
    "deep sign": (weight_like("-" * 60000 + "1"), r"header b'----.*\.\.\., not"),
    "long header": (weight_like(header(), length=60000), r"header .*x00.*\.\.\., not"),
    "no end": (weight_like(header(), b"", length=60000), "has 0 bytes of values, not"),
    "short header": (weight_like(header(), length=20), "header .*, not"),
    "short": (weight_like(header(), bytes(23)), "23 bytes of values, not 24"),
    "long": (weight_like(header(), bytes(25)), "25 bytes of values, not 24"),
    "padding": (weight_like(header(length=10_001)), "header of 10001 bytes, more than"),
}


def assert_says(problem, reason):
    """Check that the problem matches and is one short line that can be logged."""
    assert problem is not None
    assert re.search(reason, problem), problem
    assert len(problem) < 400
    assert problem.isprintable()


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_are_refused(case, monkeypatch):
    """NumPy evaluates the header of the bytes it reads: it gets good headers only."""
    arrays, reason = ARRAYS[case]
    bad = reply(arrays)
    evaluated = []
    real = ast.literal_eval
    monkeypatch.setattr(ast, "literal_eval", lambda x: evaluated.append(x) or real(x))
    assert_says(problem_of(bad, SENT, ReplyRules()), reason)
    allowed = {header(), header(shape="(3,)"), header("'<i8'", shape="()")}
    assert {text.rstrip() for text in evaluated} <= {text.rstrip() for text in allowed}


LARGE_CLAIMS = ["said shape", "huge", "deep", "deep sign", "long header", "own type"]


@pytest.mark.parametrize("case", LARGE_CLAIMS)
def test_the_declared_size_is_not_allocated(case):
    """The largest of these replies has 60 kB, and declares up to 4 EB."""
    bad = reply(ARRAYS[case][0])
    tracemalloc.start()
    try:
        assert problem_of(bad, SENT, ReplyRules(max_norm=1.0))
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


def test_a_header_with_one_byte_changed():
    """128 bytes: 10 of magic and length, 59 of text, 58 blanks and a newline.

    Only the newline may be a blank too, which NumPy reads without a warning.
    """
    good = SENT["a.weight"].data
    wrong = 0
    for position in range(128):
        for byte in b"\x00\n (1-9<>TLO'\xff":
            data = bytearray(good)
            data[position] = byte
            changed = reply(weight_with(data=bytes(data)), wire=False)
            problem = problem_of(changed, SENT, ReplyRules())
            is_same = byte == good[position] or (position, byte) == (127, ord(" "))
            wrong += is_same != (problem is None)
            assert not is_same or bits(changed.content["arrays"]) == bits(SENT)
    assert wrong == 0


METRIC = {
    "zero": ({"num-examples": 0}, "'num-examples' is 0; it must be above 0"),
    "negative": ({"num-examples": -5}, "'num-examples' is -5; it must be above 0"),
    "nan": ({"num-examples": math.nan}, "'num-examples' is nan; .* a finite number"),
    "list": ({"num-examples": [1, 2]}, r"'num-examples' is \[1, 2\]; .* a finite"),
    "too large": ({"num-examples": 2**53 + 2}, "it must be at most 9007199254740992"),
    "loss": ({"train-loss": math.nan}, "'train-loss' is nan; it must be a finite"),
    "long list": ({"train-loss": [0.5] * 9999}, r"'train-loss' is \[0.5.*\.\.\.;"),
}


@pytest.mark.parametrize("case", METRIC)
def test_metrics_that_are_refused(case):
    metrics, reason = METRIC[case]
    assert_says(problem_of(reply(metrics=metrics), SENT, ReplyRules()), reason)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", ["num-examples", "train-loss"])
def test_integers_beyond_all_floats(name, digits):
    """They cannot cross the wire today; Python refuses to format the larger one."""
    metrics = MetricRecord({**METRICS, name: 10**digits})
    bad = received(RecordDict({"arrays": SENT, "metrics": metrics}), wire=False)
    reason = f"'{name}' is .*(00|digits).*; it must be a finite number"
    assert_says(problem_of(bad, SENT, ReplyRules()), reason)


def test_another_weight_and_its_limit():
    rules = ReplyRules(weight="train-loss", max_weight=0.5)
    assert problem_of(reply(metrics={"num-examples": -1}), SENT, rules) is None
    for value, reason in ((0.0, "above 0"), (0.75, "at most 0.5")):
        problem = problem_of(reply(metrics={"train-loss": value}), SENT, rules)
        assert_says(problem, f"'train-loss' is {value}; it must be {reason}")
    none = problem_of(reply(), SENT, ReplyRules(weight="images"))
    assert_says(none, "it has no metric 'images'")


def test_metrics_that_must_be_positive():
    rules = ReplyRules(positive=("train-loss",))
    assert problem_of(reply(), SENT, rules) is None
    zero = problem_of(reply(metrics={"train-loss": 0.0}), SENT, rules)
    assert_says(zero, "'train-loss' is 0.0; it must be above 0")
    missing = problem_of(reply(), SENT, ReplyRules(positive=("step-length",)))
    assert_says(missing, "it has no metric 'step-length'")


def test_the_required_metrics():
    rules = ReplyRules(keys=("train-loss", "num-examples"))
    assert problem_of(reply(), SENT, rules) is None
    more = problem_of(reply(metrics={"x": 1}), SENT, rules)
    assert_says(more, "its metrics differ: 'x' unexpected")
    missing = problem_of(reply(), SENT, ReplyRules(keys=(*METRICS, "a", "b", "c", "d")))
    assert_says(missing, "differ: 'a', 'b', 'c' and 1 more missing")


def test_lists_of_metrics_where_they_are_allowed():
    rules = ReplyRules(lists=True)
    for good in ([], [1, 2], [0.5]):
        assert problem_of(reply(metrics={"counts": good}), SENT, rules) is None
    bad = reply(metrics={"counts": [1.0, math.inf]})
    assert_says(problem_of(bad, SENT, rules), r"'counts' is \[1.0, inf\]; .* finite")
    weights = reply(metrics={"num-examples": [1]})
    assert_says(
        problem_of(weights, SENT, rules), "'num-examples' is .* a finite number"
    )


def reply_of(**records):
    return received(RecordDict(records))


RECORDS = {
    "none": ({}, "array records are none; it must have one, 'arrays'"),
    "no metrics": ({"arrays": SENT}, "metric records are none; .* one, 'metrics'"),
    "other arrays": (
        {"weights": SENT, "metrics": MetricRecord(METRICS)},
        "array records are 'weights'; it must have one, 'arrays'",
    ),
    "other metrics": (
        {"arrays": SENT, "figures": MetricRecord(METRICS)},
        "metric records are 'figures'; it must have one, 'metrics'",
    ),
    "two": (
        {"arrays": SENT, "more": SENT, "metrics": MetricRecord(METRICS)},
        "array records are 'arrays', 'more'; it must have one",
    ),
    "empty arrays": (
        {"arrays": ArrayRecord(), "metrics": MetricRecord(METRICS)},
        "arrays differ: 'a.weight', 'a.bias', 'steps' missing",
    ),
    "empty metrics": (
        {"arrays": SENT, "metrics": MetricRecord()},
        "it has no metric 'num-examples'",
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_records_that_are_refused(case):
    records, reason = RECORDS[case]
    assert_says(problem_of(reply_of(**records), SENT, ReplyRules()), reason)


def test_records_of_any_name():
    rules = ReplyRules(arrays=None, metrics=None)
    good = reply_of(weights=SENT, figures=MetricRecord(METRICS))
    assert problem_of(good, SENT, rules) is None
    two = reply_of(a=SENT, b=SENT, metrics=MetricRecord(METRICS))
    assert_says(problem_of(two, SENT, rules), "records are 'a', 'b'; it must have one$")


def renamed(names):
    arrays = dict(zip(names, SENT.values(), strict=False))
    return reply_of(arrays=ArrayRecord(arrays), metrics=MetricRecord(METRICS))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a.weight", "a.bias"], "arrays differ: 'steps' missing"),
        (["a.weight", "a.bias", "Steps"], "'steps' missing, 'Steps' unexpected"),
        (["a.bias", "a.weight", "steps"], "in another order than those sent"),
        (["\n", "\x1b[2J", "\ud800"], r"'\\n', '\\x1b\[2J', '\\ud800' unexpected"),
        (["x" * 10**6], r"'xxxx.*x\.\.\. unexpected"),
    ],
)
def test_names_of_arrays_that_are_refused(names, reason):
    assert_says(problem_of(renamed(names), SENT, ReplyRules()), reason)


def test_a_further_type_that_is_accepted():
    """FedAvg averages an integer counter to a float; clients may keep the integer."""
    sent = record({**model(), "steps": np.array(7.0)})
    integer = reply({"steps": np.array(9, np.int64)})
    assert_says(
        problem_of(integer, sent, ReplyRules()), "'steps' .* 'int64', not 'float64'"
    )
    rules = ReplyRules(dtypes={"steps": "int64"})
    assert problem_of(integer, sent, rules) is None
    assert problem_of(reply({"steps": np.array(9.0)}), sent, rules) is None
    misleading = reply({"steps": Array("int64", (), NUMPY, Array(np.array(0.5)).data)})
    assert_says(problem_of(misleading, sent, rules), "header .*<f8.* not .*<i8")


STEP = {
    "a.weight": np.float32([[3, 1], [2, 3], [4, 5]]),
    "a.bias": np.float32([4, 1, 2]),
    "steps": np.array(10**6),
}


def test_the_norm_of_an_update():
    """(3, 0, ...) and (4, 0, 0): 5 by hand; a counter is no part of it."""
    step = reply(STEP)
    assert problem_of(step, SENT, ReplyRules(max_norm=5.0)) is None
    reason = r"its update has the norm 5; it must be at most 4\.999"
    assert_says(problem_of(step, SENT, ReplyRules(max_norm=4.999)), reason)
    only = ReplyRules(max_norm=3.0, parameters={"a.weight", "steps"})
    assert problem_of(step, SENT, only) is None
    other = ReplyRules(max_norm=3.0, parameters={"a.bias"})
    assert_says(problem_of(step, SENT, other), "the norm 4;")


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_a_norm_beyond_all_floats(dtype):
    sent = record({"x": np.full(2, -1.5e308, dtype)})
    far = record({"x": np.full(2, 1.5e308, dtype)})
    content = RecordDict({"arrays": far, "metrics": MetricRecord(METRICS)})
    problem = problem_of(received(content), sent, ReplyRules(max_norm=1e300))
    assert_says(problem, "the norm inf; it must be at most")


@pytest.mark.parametrize("part", [math.nan, complex(0, math.inf)])
def test_complex_numbers_that_are_not_finite(part):
    sent = record({"x": np.zeros(2, np.complex64)})
    bad = record({"x": np.array([1, part], np.complex64)})
    content = RecordDict({"arrays": bad, "metrics": MetricRecord(METRICS)})
    assert_says(problem_of(received(content), sent, ReplyRules()), "'x' has 1 values")
