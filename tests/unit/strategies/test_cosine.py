"""``layer_cosines`` against the paper's formula, computed the long way round."""

import math

import numpy as np
import pytest

from strategies import layer_cosines

SHAPES = [(), (1,), (7,), (5, 3), (4, 3, 3, 3), (2, 3, 1, 2, 2), (64, 33)]
DTYPES = [np.float16, np.float32, np.float64]


def naive(sent, replies, layer):
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


def clients(rng, shape, number, dtype, layers=("x",)):
    sent = {f"{x}.weight": rng.normal(size=shape).astype(dtype) for x in layers}
    common = {name: rng.normal(size=shape) for name in sent}
    replies = [
        {
            name: (w + 0.3 * common[name] + rng.normal(size=shape)).astype(dtype)
            for name, w in sent.items()
        }
        for _ in range(number)
    ]
    return sent, replies


@pytest.mark.parametrize("number", [1, 2, 10, 300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_papers_formula(shape, dtype, number):
    rng = np.random.default_rng([len(shape), number, np.dtype(dtype).itemsize])
    sent, replies = clients(rng, shape, number, dtype, ("a.b", "c"))
    scores = layer_cosines(sent, replies, ["c", "a.b"])
    assert list(scores) == ["c", "a.b"]
    for layer, value in scores.items():
        assert type(value) is float
        assert value == pytest.approx(naive(sent, replies, layer), rel=0, abs=1e-6)


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
        # mean -8/3: one client agrees, two do not: (1 - 1 - 1)/3.
        ([(-10.0,), (1.0,), (1.0,)], -1 / 3),
        # mean 4: cosines 1 and 1 and -1.
        ([(8.0,), (8.0,), (-4.0,)], 1 / 3),
        # Three at 120 degrees but one twice as long: mean along it, 1 - 1/2 - 1/2.
        ([(2.0, 0.0), (-0.5, 0.75**0.5), (-0.5, -(0.75**0.5))], 0.0),
    ],
)
@pytest.mark.parametrize("sent", [0.0, 16.0])
def test_by_hand(updates, expected, sent):
    assert score(*updates, sent=sent) == pytest.approx(expected, rel=0, abs=1e-12)


def test_opposite_updates_cancel_to_exactly_zero():
    assert score((1.0, -2.0), (-1.0, 2.0)) == 0.0
    assert score((1.0, -2.0), (-1.0, 2.0), sent=8.0, dtype=np.float16) == 0.0
    # Cancelling in pairs, with different lengths.
    assert score((1.0, 0.0), (-1.0, 0.0), (0.0, 5.0), (0.0, -5.0)) == 0.0


@pytest.mark.parametrize("power", [-40, -3, 5, 60])
def test_a_power_of_two_changes_no_bit(power):
    """Scaling by a power of two is exact in every step of the computation."""
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(9, 6, 5))
    assert score(*(updates * 2.0**power)) == score(*updates)


@pytest.mark.parametrize("scale", [1e-30, 3e-7, 0.7, 123.4, 1e30])
def test_scale_invariance(scale):
    rng = np.random.default_rng(2)
    updates = rng.normal(size=(9, 30))
    expected = pytest.approx(score(*updates), rel=0, abs=1e-12)
    assert score(*(scale * updates)) == expected
    assert score(*(-scale * updates)) == expected


def test_one_longer_client_does_change_the_score():
    """Scale invariance is of all clients together: a mean of updates, not of signs.

    (4, 0) and (0, 3): mean (2, 1.5), cosines 4/5 and 3/5, z = 0.7 < 1/sqrt2.
    """
    assert score((4.0, 0.0), (0.0, 3.0)) == pytest.approx(0.7, rel=0, abs=1e-15)


def test_permutation_of_clients():
    rng = np.random.default_rng(3)
    sent, replies = clients(rng, (20, 4), 40, np.float32)
    expected = layer_cosines(sent, replies, ["x"])["x"]
    for _ in range(5):
        shuffled = [replies[i] for i in rng.permutation(40)]
        got = layer_cosines(sent, shuffled, ["x"])["x"]
        assert got == pytest.approx(expected, rel=0, abs=1e-12)


def test_permutation_of_coordinates_and_rotation():
    rng = np.random.default_rng(4)
    updates = rng.normal(size=(11, 24))
    expected = pytest.approx(score(*updates), rel=0, abs=1e-12)
    assert score(*updates[:, rng.permutation(24)]) == expected
    rotation, _ = np.linalg.qr(rng.normal(size=(24, 24)))
    assert score(*(updates @ rotation)) == expected


def test_shape_and_memory_layout_change_no_bit():
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(6, 4, 9))
    expected = score(*updates)
    assert score(*updates.reshape(6, 36)) == expected
    assert score(*np.asfortranarray(updates)) == expected
    padded = np.zeros((6, 8, 9))
    padded[:, ::2] = updates
    assert score(*padded[:, ::2]) == expected
    big_endian = [{"x.weight": u.astype(">f8")} for u in updates]
    assert (
        layer_cosines({"x.weight": np.zeros((4, 9))}, big_endian, ["x"])["x"]
        == expected
    )


def test_layers_do_not_influence_one_another():
    rng = np.random.default_rng(6)
    names = ["a", "b", "c", "d"]
    sent, replies = clients(rng, (5, 5), 7, np.float32, names)
    together = layer_cosines(sent, replies, iter(names))
    alone = {x: layer_cosines(sent, replies, [x])[x] for x in names}
    assert together == alone
    assert len(set(alone.values())) == 4


def test_half_precision_updates_beyond_the_range_of_half_precision():
    """-6e4 - 6e4 overflows float16; the update must not be lost: 1, not nan."""
    assert score((-1.2e5,), sent=6e4, dtype=np.float16) == 1.0


def test_small_updates_of_large_half_precision_weights():
    """Steps of one unit in the last place (1 at 1024 to 2048) by hand: 0.8."""
    assert score(
        (3.0, 4.0), (-3.0, 4.0), sent=1500.0, dtype=np.float16
    ) == pytest.approx(0.8, rel=0, abs=1e-12)


def test_mixed_precision():
    rng = np.random.default_rng(8)
    sent, replies = clients(rng, (9, 2), 5, np.float32)
    mixed = [
        {"x.weight": r["x.weight"].astype(d)}
        for r, d in zip(replies, [*DTYPES, *DTYPES[:2]], strict=True)
    ]
    got = layer_cosines(sent, mixed, ["x"])["x"]
    assert got == pytest.approx(naive(sent, mixed, "x"), rel=0, abs=1e-6)


@pytest.mark.parametrize("number", [1, 2, 3, 7, 50])
def test_never_leaves_the_interval(number):
    rng = np.random.default_rng(number)
    for size in range(1, 60):
        update = rng.normal(size=size)
        agreed = score(*[update] * number)
        assert 1 - 1e-12 <= agreed <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_score_is_never_below_minus_one_nor_above_one_at_random(dtype):
    rng = np.random.default_rng(12)
    for _ in range(200):
        shape = (int(rng.integers(1, 4)),)
        sent, replies = clients(rng, shape, int(rng.integers(1, 6)), dtype)
        got = layer_cosines(sent, replies, ["x"])["x"]
        assert math.isnan(got) or -1.0 <= got <= 1.0
