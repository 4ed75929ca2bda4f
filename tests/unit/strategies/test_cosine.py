"""``layer_cosines`` and ``local_drift`` against their definitions on whole vectors."""

import math
import weakref

import numpy as np
import pytest

from strategies import layer_cosines, local_drift

DTYPES = [np.float16, np.float32, np.float64]


def paper_score(sent, replies, layer):
    """z = (1/K) sum_i cos(g_i, mean g) in float64, with every update in memory."""
    name = f"{layer}.weight"
    start = np.array(sent[name], dtype=np.float64).reshape(-1)
    updates = [np.array(r[name], dtype=np.float64).reshape(-1) - start for r in replies]
    mean = np.mean(updates, axis=0)
    cosines = [
        sum(map(float.__mul__, g.tolist(), mean.tolist()))
        / (np.linalg.norm(g) * np.linalg.norm(mean))
        for g in updates
    ]
    return sum(cosines) / len(cosines)


def score(*updates, sent=0.0, dtype=np.float64):
    """Score one layer whose clients make the given updates."""
    start = np.full(np.shape(updates[0]), sent, dtype)
    replies = [{"x.weight": (start + np.asarray(u)).astype(dtype)} for u in updates]
    return layer_cosines({"x.weight": start}, replies, ["x"])["x"]


def clients(rng, shape, number, dtype):
    sent = {
        x: np.asarray(rng.normal(size=shape), dtype) for x in ("a.b.weight", "c.weight")
    }
    common = {name: rng.normal(size=shape) for name in sent}
    replies = [
        {
            name: np.asarray(w + 0.3 * common[name] + rng.normal(size=shape), dtype)
            for name, w in sent.items()
        }
        for _ in range(number)
    ]
    return sent, replies


@pytest.mark.parametrize("number", [1, 2, 60])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (4, 3, 3, 3)], ids=str)
def test_the_score_is_the_papers_formula(shape, dtype, number):
    rng = np.random.default_rng([len(shape), number, np.dtype(dtype).itemsize])
    sent, replies = clients(rng, shape, number, dtype)
    for array in (*sent.values(), *replies[0].values()):
        array.setflags(write=False)  # an in-place operation would raise
    scores = layer_cosines(sent, replies, iter(["c", "a.b"]))
    assert list(scores) == ["c", "a.b"]
    for layer, value in scores.items():
        assert type(value) is float
        want = paper_score(sent, replies, layer)
        assert value == pytest.approx(want, rel=0, abs=1e-6)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        # g = mean: cos = 1.
        ([(3.0, 4.0)], 1.0),
        # mean (1/2, 1/2): both cosines are cos 45 degrees.
        ([(1.0, 0.0), (0.0, 1.0)], 1 / math.sqrt(2)),
        # mean (0, 4): both cosines are 4/5.
        ([(3.0, 4.0), (-3.0, 4.0)], 0.8),
        # mean (2, 1)/3: 2/sqrt5, 2/sqrt5, 1/sqrt5, so z = 5/(3 sqrt5) = sqrt5/3.
        ([(1.0, 0.0), (1.0, 0.0), (0.0, 1.0)], math.sqrt(5) / 3),
        # mean (1, 1/2), of the updates and not of their directions: cosines 2/sqrt5
        # and 1/sqrt5. With the mean direction it would be 1/sqrt2.
        ([(2.0, 0.0), (0.0, 1.0)], 3 / (2 * math.sqrt(5))),
        # mean 4: cosines 1 and 1 and -1.
        ([(8.0,), (8.0,), (-4.0,)], 1 / 3),
    ],
)
@pytest.mark.parametrize("sent", [0.0, 16.0])
def test_scores_by_hand(updates, expected, sent):
    assert score(*updates, sent=sent) == pytest.approx(expected, rel=0, abs=1e-12)


def test_opposite_updates_cancel_to_exactly_zero():
    assert score((1.0, -2.0), (-1.0, 2.0)) == 0.0
    assert score((1.0, -2.0), (-1.0, 2.0), sent=8.0, dtype=np.float16) == 0.0
    # Cancelling in pairs, with different lengths.
    assert score((1.0, 0.0), (-1.0, 0.0), (0.0, 5.0), (0.0, -5.0)) == 0.0


def test_shape_memory_layout_and_precision_change_no_bit():
    """Small whole numbers are exact in every type."""
    updates = np.random.default_rng(5).integers(-9, 9, size=(6, 4, 9)).astype("f8")
    expected = score(*updates)
    assert score(*updates.reshape(6, 36)) == expected
    assert score(*np.asfortranarray(updates)) == expected
    dtypes = [">f8", *DTYPES, *DTYPES]
    mixed = [{"x.weight": u.astype(t)} for u, t in zip(updates, dtypes, strict=False)]
    sent = {"x.weight": np.zeros((4, 9))}
    assert layer_cosines(sent, mixed, ["x"])["x"] == expected


def test_half_precision():
    """-6e4 - 6e4 overflows float16; the update must not be lost: 1, not nan.

    Steps of one unit in the last place, which is 1 from 1024 to 2048, by hand: 0.8.
    """
    assert score((-1.2e5,), sent=6e4, dtype=np.float16) == 1.0
    small = score((3.0, 4.0), (-3.0, 4.0), sent=1500.0, dtype=np.float16)
    assert small == pytest.approx(0.8, rel=0, abs=1e-12)


def test_the_score_never_leaves_the_interval():
    rng = np.random.default_rng(0)
    for size in range(1, 60):
        assert 1 - 1e-12 <= score(*[rng.normal(size=size)] * 7) <= 1.0


class Reply(dict):
    """A dict that can be weakly referenced."""


def test_replies_are_consumed_once_and_one_at_a_time():
    """When reply *i* is created, only reply *i - 1* may live (the loop's variable)."""
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


@pytest.mark.parametrize("bad", [0.0, math.nan, -math.inf])
def test_a_client_without_a_direction_does_not_count(bad):
    """(3, 4) and (-3, 4) score 0.8; K is 2 then, and not 3 (which would give 8/15).

    In ``b`` all three count: mean (2, 1)/3, z = sqrt5/3.
    """
    a = [(bad, 0.0), (3.0, 4.0), (-3.0, 4.0)]
    b = [(1.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
    replies = [
        {"a.weight": np.array(x), "b.weight": np.array(y)}
        for x, y in zip(a, b, strict=True)
    ]
    scores = layer_cosines(dict.fromkeys(replies[0], np.zeros(2)), replies, "ab")
    want = {"a": 0.8, "b": math.sqrt(5) / 3}
    assert scores == pytest.approx(want, rel=0, abs=1e-15)


def test_without_a_client_that_counts_there_is_no_score():
    for updates in ([(0.0, 0.0)] * 3, [(math.nan, 1.0), (math.inf, 0.0)]):
        assert math.isnan(score(*updates))
    no_replies = layer_cosines({"x.weight": np.ones(2)}, [], ["x"])
    assert list(no_replies) == ["x"]
    assert math.isnan(no_replies["x"])
    empty = {"x.weight": np.zeros((0, 3))}
    assert math.isnan(layer_cosines(empty, [dict(empty)], ["x"])["x"])
    assert layer_cosines({}, [{"x.weight": np.ones(2)}], []) == {}


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1,), ()])
def test_a_wrong_shape_names_layer_and_shapes(shape):
    """Shapes that NumPy would broadcast, or that have the same size, are wrong too."""
    sent = {"conv.1.weight": np.zeros((4,))}
    with pytest.raises(ValueError, match=r"'conv\.1'") as error:
        layer_cosines(sent, [{"conv.1.weight": np.ones(shape)}], ["conv.1"])
    assert str(shape) in str(error.value)
    assert "(4,)" in str(error.value)


def test_a_missing_array_is_named():
    with pytest.raises(ValueError, match=r"'conv'.*'conv\.weight'.*sent.*fc\.weight"):
        layer_cosines({"fc.weight": np.ones(1)}, [], ["conv"])
    sent = {"conv.weight": np.zeros(1)}
    good, bad = {"conv.weight": np.ones(1)}, {"conv.bias": np.ones(1)}
    with pytest.raises(
        ValueError, match=r"'conv'.*'conv\.weight'.*replied.*conv\.bias"
    ):
        layer_cosines(sent, [good, bad], ["conv"])


def drift_by_definition(replies, names):
    """H = mean_i |w_i - mean w| on the flattened, concatenated weights."""
    flat = [[np.ravel(r[n]).astype(np.float64) for n in names] for r in replies]
    vectors = np.stack([np.concatenate(arrays) for arrays in flat])
    return float(np.mean(np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)))


@pytest.mark.parametrize("number", [1, 2, 60])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_drift_is_the_definition(number, dtype):
    rng = np.random.default_rng([number, np.dtype(dtype).itemsize])
    shapes = {"a": (4, 3), "b": (), "c": (2, 3, 1, 2), "d": (7,)}
    replies = [
        {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
        for _ in range(number)
    ]
    drift = local_drift(replies, iter(shapes))
    want = drift_by_definition(replies, list(shapes))
    assert drift == pytest.approx(want, rel=1e-12, abs=1e-12)
    assert (drift == 0) == (number == 1), "one client does not drift"


def test_the_sent_weights_cancel_out_of_the_drift():
    """With the updates dw_i = w_i - w in place of w_i: integers, so no bit differs."""
    rng = np.random.default_rng(3)
    weights = rng.integers(-50, 50, size=(4, 6)).astype(np.float64)
    sent = rng.integers(-50, 50, size=6).astype(np.float64)
    replies = [{"a": w} for w in weights]
    updates = [{"a": w - sent} for w in weights]
    assert local_drift(replies, ["a"]) == local_drift(updates, ["a"])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # mean 1, each 1 away.
        ([(0.0,), (2.0,)], 1.0),
        # mean 1; 1, 1 and 2 away: 4/3. A root mean square would be sqrt 2.
        ([(0.0,), (0.0,), (3.0,)], 4 / 3),
        # mean (3, 4): both 5 away.
        ([(0.0, 0.0), (6.0, 8.0)], 5.0),
        # All the same.
        ([(1.5, -2.0)] * 4, 0.0),
    ],
)
def test_drift_by_hand(weights, expected):
    drift = local_drift([{"a": np.array(w)} for w in weights], ["a"])
    assert drift == pytest.approx(expected, rel=1e-15, abs=0)


def test_the_named_arrays_count_as_one_vector():
    """(3, 4) in two arrays is 5 away from the mean, not 3 + 4 or (3 + 4)/2."""
    replies = [
        {"a": np.array([0.0]), "b": np.array([[0.0]]), "buffer": np.array([1e6])},
        {"a": np.array([6.0]), "b": np.array([[8.0]]), "buffer": np.array([-1e6])},
    ]
    assert local_drift(replies, ["a", "b"]) == 5.0


def test_a_drift_without_replies_and_beyond_half_precision():
    """The sum 1.8e5 overflows float16: mean 6e4, and no drift."""
    assert math.isnan(local_drift([], ["a"]))
    assert local_drift([{"a": np.array([6e4], np.float16)}] * 3, ["a"]) == 0.0


def test_the_drift_needs_arrays_of_one_shape():
    with pytest.raises(ValueError, match=r"w: .*\(1,\)"):
        local_drift([{"w": np.ones(2)}, {"w": np.ones(1)}], ["w"])
    with pytest.raises(ValueError, match=r"w: a reply has no such array"):
        local_drift([{"w": np.ones(2)}, {"v": np.ones(2)}], ["w"])
