"""The rules, the skewness that ``auto`` decides by, and the checks of arguments."""

import math
from fractions import Fraction

import numpy as np
import pytest

from strategies import FLFAFedAvg, FLFAFedAvgM, LayerSelection
from strategies.rules import RULES, RuleContext, skewness

NAN = math.nan
SCORES = {"a": 0.5, "b": -0.25, "c": 0.75, "d": 0.0}


def choose(rule, scores, num_layers=1, **context):
    got = RULES[rule](scores, RuleContext(num_layers=num_layers, **context))
    assert type(got) is list
    return got


def exact_skewness(values):
    """m3 / m2^(3/2) of the population, in exact arithmetic up to the last root."""
    exact = [Fraction(float(v)) for v in values]
    mean = sum(exact) / len(exact)
    m2 = sum((v - mean) ** 2 for v in exact) / len(exact)
    m3 = sum((v - mean) ** 3 for v in exact) / len(exact)
    return math.copysign(math.sqrt(m3**2 / m2**3), m3)


@pytest.mark.parametrize(
    ("rule", "num_layers", "expected"),
    [
        ("lowest", 1, ["b"]),
        ("lowest", 2, ["b", "d"]),
        ("lowest", 4, ["b", "d", "a", "c"]),
        ("highest", 1, ["c"]),
        ("highest", 3, ["c", "a", "d"]),
        ("none", 1, []),
        ("none", 3, []),
    ],
)
def test_order_of_the_scores(rule, num_layers, expected):
    assert choose(rule, SCORES, num_layers) == expected


@pytest.mark.parametrize("rule", ["lowest", "highest"])
def test_of_equal_scores_the_first(rule):
    """One client agrees with itself: every score is 1, give or take the last bits."""
    assert choose(rule, {"z": 0.5, "y": 0.5, "x": 0.5}, 2) == ["z", "y"]
    assert choose(rule, {"n": 0.0, "p": -0.0}) == ["n"]
    assert choose(rule, {"p": -0.0, "n": 0.0}) == ["p"]
    assert choose(rule, {"a": 1.0, "b": 1 - 1e-15, "c": 1.0}) == ["a"]
    assert choose(rule, {"a": 1 - 1e-15, "b": 1.0}) == ["a"]


@pytest.mark.parametrize(
    ("rule", "expected"), [("lowest", ["e", "b"]), ("highest", ["b", "e"])]
)
def test_layers_without_a_score_are_never_chosen(rule, expected):
    scores = {"a": NAN, "b": 0.9, "c": NAN, "e": -0.9, "f": NAN}
    assert choose(rule, scores, 1) == expected[:1]
    assert choose(rule, scores, 4) == expected, "fewer than num_layers, but no nan"
    assert choose(rule, {"a": NAN, "b": NAN}) == []


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        # mean 1, m3 = (-1 - 1 + 8)/3 = 2 > 0: most at the low end.
        ({"a": 0, "b": 0, "c": 3, "d": NAN}, "lowest"),
        # The mirror image: m3 = -2.
        ({"a": 0, "b": 0, "c": -3, "d": NAN}, "highest"),
        # Symmetric, equal, single and no values: skewness 0, which is not above 0.
        ({"a": -1, "b": 0, "c": 1, "d": NAN}, "highest"),
        ({"a": 0.3, "b": 0.3, "c": 0.3, "d": 0.3}, "highest"),
        ({"a": 0.3, "b": NAN, "c": NAN, "d": NAN}, "highest"),
        ({"a": NAN, "b": NAN, "c": NAN, "d": NAN}, "highest"),
    ],
)
def test_auto_decides_by_the_first_scores_only(first, expected):
    """SCORES themselves have another skewness, which does not matter."""
    for scores in (SCORES, {k: -v for k, v in SCORES.items()}):
        want = choose(expected, scores, 2)
        assert choose("auto", scores, 2, first_scores=first) == want


@pytest.mark.parametrize("pair", [(0.3, 0.4), (0.1, 0.7), (0.25, 0.5)])
def test_auto_with_two_candidates_is_highest(pair):
    """Two values a, b lie (b - a)/2 on either side of their mean: m3 = 0 exactly.

    So the skewness is 0, not above 0, and the rule is ``highest``, for every pair.
    """
    scores = dict(zip("ab", pair, strict=True))
    assert choose("auto", scores, first_scores=scores) == ["b"]


def test_fixed_whatever_the_scores():
    for scores in (SCORES, {}, dict.fromkeys("abcd", NAN)):
        got = choose("fixed", scores, 1, fixed_layers=("d", "a"))
        assert got == ["d", "a"]


def test_random_depends_on_seed_and_round_alone():
    names = [f"layer{i}" for i in range(6)]
    rng = np.random.default_rng(0)
    for server_round in range(1, 20):
        context = {"seed": 3, "server_round": server_round}
        want = choose("random", dict.fromkeys(names, 0.0), 2, **context)
        assert len(set(want)) == 2
        assert set(want) <= set(names)
        for values in (rng.uniform(-1, 1, 6), [NAN] * 6, range(6)):
            scores = dict(zip(names, values, strict=True))
            assert choose("random", scores, 2, **context) == want


def test_random_varies_over_rounds_and_seeds():
    scores = dict.fromkeys("abcdef", 0.0)

    def draws(seed):
        return [
            tuple(choose("random", scores, 2, seed=seed, server_round=r))
            for r in range(1, 31)
        ]

    assert draws(0) == draws(0)
    assert draws(0) != draws(1)
    assert len(set(draws(0))) > 10
    assert draws(0)[1:] != draws(1)[:-1], "seed + round would repeat the draws"


def test_random_is_uniform():
    """1200 draws of 1 of 4: 300 each, standard deviation 15; 5 of them are 75."""
    counts = dict.fromkeys("abcd", 0)
    for server_round in range(1200):
        counts[choose("random", counts, seed=1, server_round=server_round)[0]] += 1
    assert all(abs(count - 300) < 75 for count in counts.values())


@pytest.mark.parametrize("rule", list(RULES))
def test_scores_are_not_changed_nor_returned(rule):
    scores = dict(SCORES)
    first = {"a": 0.0, "b": 0.0, "c": 1.0}
    got = choose(rule, scores, 2, first_scores=first, fixed_layers=("a",))
    got.append("x")
    assert scores == SCORES
    assert first == {"a": 0.0, "b": 0.0, "c": 1.0}
    assert "x" not in choose(rule, scores, 2, first_scores=first, fixed_layers=("a",))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # mean 1; m2 = (1 + 1 + 4)/3 = 2; m3 = (-1 - 1 + 8)/3 = 2; 2/2^1.5 = 1/sqrt2.
        ([0, 0, 3], 1 / math.sqrt(2)),
        ([0, 0, -3], -1 / math.sqrt(2)),
        # mean 1; m2 = (4 * 1 + 16)/5 = 4; m3 = (-4 + 64)/5 = 12; 12/8 = 1.5.
        ([0, 0, 0, 0, 5], 1.5),
        ([-2, -1, 0, 1, 2], 0.0),
        ([4], 0.0),
        ([], 0.0),
        ([0.1, 0.1, 0.1], 0.0),
        # Values that are not finite are left out.
        ([0, NAN, 0, math.inf, 3, -math.inf], 1 / math.sqrt(2)),
        ([NAN, NAN], 0.0),
    ],
)
def test_skewness_by_hand(values, expected):
    assert skewness(values) == pytest.approx(expected, rel=1e-15, abs=0)


def test_skewness_is_the_definition():
    rng = np.random.default_rng(2)
    for size in (3, 4, 10, 50):
        values = rng.beta(2, 5, size=size)
        assert skewness(values) == pytest.approx(exact_skewness(values), rel=1e-9)
        shifted = iter((7 * values - 3).tolist())
        assert skewness(shifted) == pytest.approx(skewness(values), rel=1e-9)
        assert skewness(-values) == pytest.approx(-skewness(values), rel=1e-12)


AB = ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": AB, "rule": "smallest"}, "'smallest'.*lowest.*none"),
        ({"layers": AB, "rule": ["lowest"]}, "unknown"),
        ({"layers": AB, "num_layers": 0, "rule": "none"}, "num_layers.*0"),
        ({"layers": AB, "num_layers": True}, "num_layers.*True"),
        ({"layers": AB, "num_layers": 1.5}, "num_layers.*1.5"),
        ({"layers": AB, "num_layers": 3}, "3.*2 candidate"),
        ({"layers": AB, "num_layers": 3, "rule": "random"}, "3.*2 candidate"),
        ({"layers": ["a", "b", "a"]}, "layers contains a name twice: a, b, a"),
        ({"layers": "conv1"}, "layers must be a sequence of names, not 'conv1'"),
        ({"layers": "", "rule": "none"}, "sequence"),
        ({"layers": [1, 2]}, "sequence of names"),
        ({"layers": []}, "no layers"),
        ({"layers": [], "rule": "fixed", "fixed_layers": ["a"]}, "no layers"),
        ({"layers": AB, "rule": "fixed"}, "fixed_layers"),
        ({"layers": AB, "rule": "lowest", "fixed_layers": ["a"]}, "rule='lowest'"),
        ({"layers": AB, "rule": "none", "fixed_layers": ["a"]}, "rule='none'"),
        ({"layers": AB, "rule": "fixed", "fixed_layers": ["a", "z"]}, "z.*candidates"),
        ({"layers": ["a"], "rule": "fixed", "fixed_layers": "a"}, "fixed_layers"),
        ({"layers": AB, "rule": "fixed", "fixed_layers": ["a", "a"]}, "twice"),
        ({"layers": AB, "selection_seed": -1}, "selection_seed.*-1"),
        ({"layers": AB, "selection_seed": 0.5}, "selection_seed.*0.5"),
        ({"layers": AB, "observed_layers": "conv"}, "observed_layers.*'conv'"),
        ({"layers": AB, "drift_parameters": "conv"}, "drift_parameters.*'conv'"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LayerSelection(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"layers": AB, "num_layer": 1},
        {"layers": AB, "fraction_fit": 0.5},
        {"layers": AB, "server_momentum": 0.9},
    ],
)
def test_a_missing_or_misspelt_argument(arguments):
    for cls in (LayerSelection, FLFAFedAvg):
        with pytest.raises(TypeError):
            cls(**arguments)
    with pytest.raises(TypeError):
        LayerSelection(AB)
    assert FLFAFedAvgM(layers=AB, server_momentum=0.9).server_momentum == 0.9


@pytest.mark.parametrize(
    "arguments",
    [
        {"layers": [], "rule": "none"},
        {"layers": ("a",)},
        {"layers": AB, "num_layers": 2},
        {"layers": AB, "num_layers": 3, "rule": "none"},
        {"layers": ["a"], "num_layers": 5, "rule": "fixed", "fixed_layers": ("a",)},
        {"layers": AB, "rule": "fixed", "fixed_layers": ["b", "a"]},
        {"layers": AB, "observed_layers": iter(["c"]), "selection_seed": 7},
    ],
)
def test_arguments_that_are_accepted(arguments):
    strategy = LayerSelection(**arguments)
    assert strategy.layers == list(arguments["layers"])
    assert strategy.selected == list(arguments.get("fixed_layers", ()))
    assert (strategy.scores, strategy.first_scores) == ({}, {})
