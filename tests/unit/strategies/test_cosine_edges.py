"""``layer_cosines`` as a stream, and on what can go wrong in a reply."""

import math
import tracemalloc
import weakref

import numpy as np
import pytest

from strategies import layer_cosines


class Reply(dict):
    """A dict that can be weakly referenced."""


class Once:
    """An iterable that counts how it is consumed."""

    def __init__(self, items):
        self.items = list(items)
        self.iterated = 0
        self.asked = 0

    def __iter__(self):
        self.iterated += 1
        return self

    def __next__(self):
        self.asked += 1
        if not self.items:
            raise StopIteration
        return self.items.pop(0)


def score(*updates):
    """Score one layer, sent as zeros, whose clients make the given updates."""
    replies = [{"x.weight": np.array(u)} for u in updates]
    return layer_cosines(
        {"x.weight": np.zeros_like(replies[0]["x.weight"])}, replies, "x"
    )["x"]


def test_replies_are_iterated_once():
    rng = np.random.default_rng(0)
    replies = [{"a.weight": g, "b.weight": -g} for g in rng.normal(size=(5, 4))]
    sent = {"a.weight": np.zeros(4), "b.weight": np.zeros(4)}
    once = Once(replies)
    scores = layer_cosines(sent, once, ["a", "b"])
    assert (once.iterated, once.asked) == (1, 6)  # five replies and the end
    assert scores == layer_cosines(sent, replies, ["a", "b"])


def test_a_generator_is_consumed_one_reply_at_a_time():
    """When reply *i* is made, only reply *i - 1* may live (the loop's variable)."""
    rng = np.random.default_rng(1)
    mappings, arrays = [], []

    def replies():
        for _ in range(12):
            assert all(ref() is None for ref in mappings[:-1] + arrays[:-2])
            reply = Reply({n: rng.normal(size=50) for n in ("a.weight", "b.weight")})
            mappings.append(weakref.ref(reply))
            arrays.extend(weakref.ref(array) for array in reply.values())
            yield reply
            del reply

    sent = {"a.weight": np.zeros(50), "b.weight": np.zeros(50)}
    scores = layer_cosines(sent, replies(), ["a", "b"])
    assert len(mappings) == 12
    assert all(ref() is None for ref in mappings + arrays)
    assert all(math.isfinite(z) for z in scores.values())


def test_memory_does_not_grow_with_the_number_of_replies():
    sent = {"x.weight": np.zeros(50_000, np.float32)}

    def peak(number):
        replies = (
            {"x.weight": np.full(50_000, 1 + i, np.float32)} for i in range(number)
        )
        tracemalloc.start()
        try:
            assert layer_cosines(sent, replies, ["x"])["x"] == pytest.approx(1.0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # whatever is allocated only once
    assert peak(200) <= 1.1 * peak(20)


def test_layers_may_be_an_iterator():
    sent = {"a.weight": np.zeros(2), "b.weight": np.zeros(2)}
    replies = [{"a.weight": np.ones(2), "b.weight": np.ones(2)}] * 2
    assert list(layer_cosines(sent, replies, (x for x in "ba"))) == ["b", "a"]


def test_only_the_arrays_of_the_layers_are_looked_at():
    class Strict(dict):
        def __getitem__(self, name):
            assert name == "x.weight"
            return super().__getitem__(name)

    arrays = Strict({"x.weight": np.ones(2), "x.bias": None, "y.weight": None})
    sent = Strict({"x.weight": np.zeros(2), "x.bias": None})
    assert layer_cosines(sent, [arrays, arrays], ["x"]) == {"x": pytest.approx(1.0)}


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_client_without_a_direction_does_not_count(bad, position):
    """(3, 4) and (-3, 4) score 0.8; K is 2 then, and not 3 (which would give 8/15)."""
    updates = [(3.0, 4.0), (-3.0, 4.0)]
    updates.insert(position, (bad, 0.0))
    assert score(*updates) == score((3.0, 4.0), (-3.0, 4.0))
    assert score(*updates) == pytest.approx(0.8, rel=0, abs=1e-15)


def test_a_client_is_skipped_in_the_bad_layer_only():
    """In ``b`` three clients count: mean (1, 1)/3 + (1, 0)/3, z = sqrt5/3 by hand."""
    sent = {"a.weight": np.zeros(2), "b.weight": np.zeros(2)}
    replies = [
        {"a.weight": np.array([math.nan, 1.0]), "b.weight": np.array([1.0, 0.0])},
        {"a.weight": np.array([1.0, 0.0]), "b.weight": np.array([1.0, 0.0])},
        {"a.weight": np.array([0.0, 1.0]), "b.weight": np.array([0.0, 1.0])},
    ]
    scores = layer_cosines(sent, replies, ["a", "b"])
    assert scores["a"] == pytest.approx(1 / math.sqrt(2), rel=0, abs=1e-15)
    assert scores["b"] == pytest.approx(math.sqrt(5) / 3, rel=0, abs=1e-15)


@pytest.mark.parametrize(
    "updates", [[(0.0, 0.0)], [(0.0, 0.0)] * 3, [(math.nan, 1.0), (math.inf, 0.0)]]
)
def test_nobody_counts(updates):
    assert math.isnan(score(*updates))


def test_no_replies():
    scores = layer_cosines({"x.weight": np.ones(2)}, [], ["x"])
    assert list(scores) == ["x"]
    assert math.isnan(scores["x"])


def test_no_layers():
    assert layer_cosines({}, [{"x.weight": np.ones(2)}], []) == {}


def test_an_empty_array_has_no_score():
    sent = {"x.weight": np.zeros((0, 3))}
    assert math.isnan(layer_cosines(sent, [dict(sent)], ["x"])["x"])


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 1), (1,), ()])
def test_a_wrong_shape_names_layer_and_shapes(shape):
    """Shapes that NumPy would broadcast, or that have the same size, are wrong too."""
    sent = {"conv.1.weight": np.zeros((4,))}
    with pytest.raises(ValueError, match=r"'conv\.1'") as error:
        layer_cosines(sent, [{"conv.1.weight": np.ones(shape)}], ["conv.1"])
    assert str(shape) in str(error.value)
    assert "(4,)" in str(error.value)


def test_an_array_missing_among_the_sent_ones():
    with pytest.raises(ValueError, match=r"'conv'.*'conv\.weight'.*sent.*fc\.weight"):
        layer_cosines({"fc.weight": np.ones(1)}, [], ["conv"])


def test_an_array_missing_in_a_reply():
    sent = {"conv.weight": np.zeros(1)}
    good, bad = {"conv.weight": np.ones(1)}, {"conv.bias": np.ones(1)}
    with pytest.raises(
        ValueError, match=r"'conv'.*'conv\.weight'.*replied.*conv\.bias"
    ):
        layer_cosines(sent, [good, bad], ["conv"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_inputs_are_not_changed(dtype):
    rng = np.random.default_rng(9)
    sent = {"x.weight": rng.normal(size=(3, 4)).astype(dtype)}
    replies = [{"x.weight": rng.normal(size=(3, 4)).astype(dtype)} for _ in range(4)]
    arrays = [sent["x.weight"], *(r["x.weight"] for r in replies)]
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.setflags(write=False)  # an in-place operation would raise
    layer_cosines(sent, replies, ["x"])
    assert all(np.array_equal(a, b) for a, b in zip(arrays, copies, strict=True))
    assert list(sent) == ["x.weight"]
    assert all(list(reply) == ["x.weight"] for reply in replies)
