"""Allowed values, and options as attributes of a strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategies.options import (
    Flag,
    Number,
    OneOf,
    Option,
    Text,
    ValueType,
    WholeNumber,
    options_of,
)

HALF_OPEN = Number(least=0, below=1)
OPEN = Number(above=0, most=1)
WHOLE = WholeNumber(1)
NAMES = OneOf({"hard": "the paper", "soft": ""})

# Type, values of a config file that are allowed, values that are not.
CASES: list[tuple[ValueType[Any], list[Any], list[Any]]] = [
    (HALF_OPEN, [0, 0.0, 0.99], [1, -0.1, float("nan"), True, "0.5", None]),
    (OPEN, [0.01, 1], [0, 1.01, float("inf"), False]),
    (Number(least=0), [0, 1e300], [-1e-9, float("inf")]),
    (WHOLE, [1, 10**6], [0, 1.0, True, "1", None]),
    (NAMES, ["hard", "soft"], ["Hard", "", 1, None]),
    (Flag(), [True, False], [1, 0, "true", None]),
    (Text(), ["", "x"], [1, None, True]),
]


@pytest.mark.parametrize(("values", "good", "bad"), CASES)
def test_values_of_a_config_file(
    values: ValueType[Any], good: list[Any], bad: list[Any]
) -> None:
    assert [value for value in good if not values.accepts(value)] == []
    assert [value for value in bad if values.accepts(value)] == []
    for value in good:
        converted = values.convert("x", value)
        assert (converted, type(converted)) == (value, values.python_type)


def test_allowed_values_in_words() -> None:
    assert HALF_OPEN.allowed == "a number from 0 to below 1"
    assert OPEN.allowed == "a number above 0 to 1"
    assert Number().allowed == "a number"
    assert WHOLE.allowed == "a whole number, 1 or more"
    assert NAMES.allowed == "one of hard, soft"
    assert (Flag().allowed, Text().allowed) == ("true or false", "a text")


@pytest.mark.parametrize(
    ("values", "given", "expected"),
    [
        (HALF_OPEN, "0.5", 0.5),
        (HALF_OPEN, np.float32(0.5), 0.5),
        (WHOLE, "3", 3),
        (WHOLE, np.int64(3), 3),
        (WHOLE, 3.0, 3),
        (NAMES, np.str_("soft"), "soft"),
    ],
)
def test_numbers_of_numpy_and_in_texts_are_converted(
    values: ValueType[Any], given: Any, expected: Any
) -> None:
    converted = values.convert("x", given)
    assert (converted, type(converted)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("values", "given"),
    [
        (HALF_OPEN, "fast"),
        (HALF_OPEN, "nan"),
        (HALF_OPEN, False),
        (HALF_OPEN, [0.5]),
        (WHOLE, 2.5),
        (WHOLE, 0),
        (WHOLE, float("inf")),
        (NAMES, None),
        (Flag(), 1),
        (Text(), 1),
    ],
)
def test_others_are_refused_by_name(values: ValueType[Any], given: Any) -> None:
    with pytest.raises(ValueError, match=r"^mu is .*; it must be ") as caught:
        values.convert("mu", given)
    assert str(caught.value) == f"mu is {given!r}; it must be {values.allowed}"


def test_names_are_looked_up_when_they_are_needed() -> None:
    names = ["a"]
    values = OneOf(lambda: names, {"a": "first"})
    names.append("b")
    assert values.names == ("a", "b")
    assert values.explanations == {"a": "first"}
    assert NAMES.explanations == {"hard": "the paper", "soft": ""}
    assert OneOf(("a",)).explanations == {}


class Base:
    mu = Option("base-mu", 0.1, Number(least=0), "weight", fedavg=0.0, to_clients=True)
    form = Option("base-form", "hard", NAMES, "form")

    def __init__(self, mu: float = mu.default) -> None:
        self.mu = mu


class Child(Base):
    rate = Option("child-rate", 1.0, Number(above=0), "rate", to_clients="rate")


def test_an_option_is_an_attribute_that_converts() -> None:
    strategy = Base()
    assert (strategy.mu, vars(strategy)) == (0.1, {"mu": 0.1})
    strategy.mu = "2"  # type: ignore[assignment]
    assert strategy.mu == 2.0
    with pytest.raises(ValueError, match="mu is -1; it must be a number from 0"):
        strategy.mu = -1
    assert strategy.mu == 2.0
    assert Base(0.5).mu == 0.5


def test_options_of_a_class_in_their_order() -> None:
    assert options_of(Child) == (Child.mu, Child.form, Child.rate)
    assert [option.argument for option in options_of(Child)] == ["mu", "form", "rate"]
    keys = [option.message_key for option in options_of(Child)]
    assert keys == ["base-mu", None, "rate"]
    assert Base.mu.fedavg == 0.0
    assert options_of(int) == ()
