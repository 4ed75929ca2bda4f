"""Arms in turn, and the arithmetic of the figures."""

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.timing import (
    Pause,
    at_one_speed,
    interleaved,
    machine,
    paired_ratio,
    quartiles,
    typical,
)


def test_pieces_run_one_after_another_and_no_arm_twice_in_a_row() -> None:
    """The first pieces of a, b and c in some order, then the second ones."""
    seen: list[str] = []

    def arm(name: str):
        def run(pause: Pause) -> None:
            seen.append(f"{name}1")
            pause()
            seen.append(f"{name}2")

        return run

    seconds = interleaved({name: arm(name) for name in "abc"}, repetitions=2)
    turns = [seen[i : i + 3] for i in range(0, len(seen), 3)]
    assert len(turns) == 2 * 3  # the first repetition is not counted
    for i, turn in enumerate(turns):
        assert sorted(turn) == [f"{name}{i % 2 + 1}" for name in "abc"]
    assert len({"".join(turn) for turn in turns[::2]}) > 1
    assert all(one[0] != other[0] for one, other in pairwise(seen))
    assert all(
        len(pieces) == 2 for repetitions in seconds.values() for pieces in repetitions
    )
    assert all(len(repetitions) == 2 for repetitions in seconds.values())


def test_a_paired_ratio_by_hand() -> None:
    """Whoever comes second needs half: the ratios are 6 if it is the base, else 3/2.

    One of them is an outlier each; sqrt(6 * 3/2) = 3.
    """
    other_first = np.array([[True, True, True], [False, False, False]])
    base = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    other = np.array([[6.0, 6.0, 60.0], [3.0, 3.0, 0.3]])
    assert paired_ratio(base, other, other_first) == pytest.approx(3.0, rel=1e-15)


def test_an_error_in_an_arm_reaches_the_caller() -> None:
    def broken(pause: Pause) -> None:
        pause()
        raise ZeroDivisionError("in the second piece")

    with pytest.raises(ZeroDivisionError, match="second piece"):
        interleaved({"a": lambda pause: pause(), "b": broken}, repetitions=1)


def test_a_slow_moment_does_not_change_a_ratio() -> None:
    """Three arms of 1, 2 and 4 seconds a piece; the machine stalls by a factor 7.

    By turns the median of the arms is 2, 14 and 2 seconds, usually 2: divided by it and
    multiplied by 2 every piece is what it was without the stall.
    """
    speed = np.array([[1.0, 7.0], [1.0, 1.0], [1.0, 1.0]])  # repetitions, pieces
    seconds = {
        name: (factor * speed).tolist()
        for name, factor in zip("abc", (1, 2, 4), strict=True)
    }
    times = at_one_speed(seconds)
    assert [typical(times[name]) for name in "abc"] == [2.0, 4.0, 8.0]
    assert quartiles(times["c"]) == (8.0, 8.0)


def test_typical_is_the_sum_of_the_medians_of_the_pieces() -> None:
    """Medians 2 and 20."""
    assert typical(np.array([[1.0, 20.0], [2.0, 90.0], [3.0, 10.0]])) == 22.0


def test_the_machine_is_named() -> None:
    about = machine()
    assert about["processor"]
    assert {"date", "python", "torch", "flwr"} <= about.keys()
