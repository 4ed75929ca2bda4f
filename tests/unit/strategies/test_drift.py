"""``local_drift`` against the definition on one long vector a client."""

import math

import numpy as np
import pytest

from strategies import local_drift


def naive(replies, names):
    """H = mean_i |w_i - mean w| on the flattened, concatenated weights."""
    vectors = np.stack(
        [
            np.concatenate(
                [np.array(r[n], dtype=np.float64).reshape(-1) for n in names]
            )
            for r in replies
        ]
    )
    return float(np.mean(np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)))


@pytest.mark.parametrize("number", [1, 2, 5, 60])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_is_the_definition(number, dtype):
    rng = np.random.default_rng([number, np.dtype(dtype).itemsize])
    shapes = {"a": (4, 3), "b": (), "c": (2, 3, 1, 2), "d": (7,)}
    replies = [
        {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
        for _ in range(number)
    ]
    assert local_drift(replies, iter(shapes)) == pytest.approx(
        naive(replies, list(shapes)), rel=1e-12, abs=1e-12
    )


def test_the_received_weights_cancel_out():
    """With the updates dw_i = w_i - w in place of w_i: integers, so no bit differs."""
    rng = np.random.default_rng(3)
    weights = rng.integers(-50, 50, size=(4, 6)).astype(np.float64)
    received = rng.integers(-50, 50, size=6).astype(np.float64)
    replies = [{"a": w} for w in weights]
    updates = [{"a": w - received} for w in weights]
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
def test_by_hand(weights, expected):
    assert local_drift([{"a": np.array(w)} for w in weights], ["a"]) == expected


def test_arrays_count_as_one_vector():
    """(3, 4) in two arrays is 5 away from the mean, not 3 + 4 or (3 + 4)/2."""
    replies = [
        {"a": np.array([0.0]), "b": np.array([[0.0]])},
        {"a": np.array([6.0]), "b": np.array([[8.0]])},
    ]
    assert local_drift(replies, ["a", "b"]) == 5.0


def test_every_client_counts_the_same():
    """Ten clients at 0 and one at 11: mean 1, ten times 1 and once 10: 20/11."""
    replies = [{"a": np.array([0.0])}] * 10 + [{"a": np.array([11.0])}]
    assert local_drift(replies, ["a"]) == pytest.approx(20 / 11, rel=1e-15)


def test_only_the_names_count():
    replies = [
        {"a": np.array([0.0]), "mean": np.array([1e6])},
        {"a": np.array([2.0]), "mean": np.array([-1e6])},
    ]
    assert local_drift(replies, ["a"]) == 1.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_client_does_not_drift(dtype):
    weights = np.random.default_rng(0).normal(size=(9, 9)).astype(dtype)
    assert local_drift([{"a": weights}], ["a"]) == 0.0


def test_no_client():
    assert math.isnan(local_drift([], ["a"]))


def test_half_precision_sums_beyond_its_range():
    """Sum 1.8e5 overflows float16: mean 6e4 and no drift."""
    replies = [{"a": np.array([6e4], np.float16)}] * 3
    assert local_drift(replies, ["a"]) == 0.0


def test_inputs_are_not_changed():
    replies = [{"a": np.array([float(i), 1.0])} for i in range(3)]
    for reply in replies:
        reply["a"].setflags(write=False)
    local_drift(replies, ["a"])
    assert [reply["a"].tolist() for reply in replies] == [[0, 1], [1, 1], [2, 1]]


def test_another_shape_is_not_broadcast():
    with pytest.raises(ValueError, match=r"w: .*\(1,\)"):
        local_drift([{"w": np.ones(2)}, {"w": np.ones(1)}], ["w"])
