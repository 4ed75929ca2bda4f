"""Options of a method, declared beside its strategy class, and the values they allow.

This module needs neither torch nor Flower: a config can be checked before either is
imported.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

__all__ = [
    "Flag",
    "Number",
    "OneOf",
    "Option",
    "Text",
    "ValueType",
    "WholeNumber",
    "options_of",
]

T = TypeVar("T")


class ValueType(ABC, Generic[T]):
    """The type and the range of a value."""

    python_type: Callable[[Any], T]

    @property
    @abstractmethod
    def allowed(self) -> str:
        """The allowed values in words, to follow "it must be"."""

    def in_range(self, value: T) -> bool:
        """Return whether a value of the right type is allowed."""
        return True

    def accepts(self, value: Any) -> bool:
        """Return whether a value of a config file is allowed.

        Its type must be right: ``"1"`` is not a number, nor is ``true``, although
        Python counts it among the integers. 1 is accepted where 1.0 is meant.
        """
        types: Any = (int, float) if self.python_type is float else self.python_type
        flags_match = isinstance(value, bool) == (self.python_type is bool)
        return isinstance(value, types) and flags_match and self.in_range(value)

    def convert(self, name: str, value: Any) -> T:
        """Return an argument of a constructor as its Python type.

        NumPy's numbers and a number given as a text are converted. A value that is not
        allowed is a :class:`ValueError`.
        """
        try:
            converted = self.python_type(value)
            lossless = isinstance(value, str) or bool(converted == value)
        except (TypeError, ValueError, OverflowError):
            lossless = False
        flags_match = isinstance(value, bool) == (self.python_type is bool)
        if lossless and flags_match and self.in_range(converted):
            return converted
        raise ValueError(f"{name} is {value!r}; it must be {self.allowed}")


@dataclass(frozen=True, kw_only=True)
class Number(ValueType[float]):
    """A finite number in a range that excludes ``above`` and ``below``."""

    python_type = float

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    @property
    def allowed(self) -> str:
        """The range in words."""
        words = ("from", "above", "to", "to below")
        bounds = (self.least, self.above, self.most, self.below)
        named = zip(words, bounds, strict=True)
        given = [f"{word} {x:g}" for word, x in named if math.isfinite(x)]
        return " ".join(["a number", *given])

    def in_range(self, value: float) -> bool:
        """Return whether a number is finite and between the bounds."""
        return (
            math.isfinite(value)
            and self.least <= value <= self.most
            and self.above < value < self.below
        )


@dataclass(frozen=True)
class WholeNumber(ValueType[int]):
    """A whole number that is not below ``least``."""

    python_type = int
    least: int

    @property
    def allowed(self) -> str:
        """The range in words."""
        return f"a whole number, {self.least} or more"

    def in_range(self, value: int) -> bool:
        """Return whether a number is large enough."""
        return value >= self.least


class OneOf(ValueType[str]):
    """One of several names, given as a function where finding them takes long.

    A mapping has a short explanation of each name; ``explanations`` are of some names.
    """

    python_type = str

    def __init__(
        self,
        names: Collection[str] | Callable[[], Collection[str]],
        explanations: Mapping[str, str] | None = None,
    ) -> None:
        self._names = names
        if explanations is None and isinstance(names, Mapping):
            explanations = names
        self.explanations: Mapping[str, str] = explanations or {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in their order."""
        return tuple(self._names() if callable(self._names) else self._names)

    @property
    def allowed(self) -> str:
        """The names in words."""
        return "one of " + ", ".join(self.names)

    def in_range(self, value: str) -> bool:
        """Return whether a text is one of the names."""
        return value in self.names


class Flag(ValueType[bool]):
    """True or false."""

    python_type = bool
    allowed = "true or false"


class Text(ValueType[str]):
    """Any text."""

    python_type = str
    allowed = "a text"


class Option(Generic[T]):
    """An option of a method: an attribute of its strategy that checks what it is given.

    ``mu = Option("moon-mu", 0.1, Number(least=0), "weight of the term")`` in the body
    of a strategy class makes ``self.mu = value`` convert the value, or raise
    :class:`ValueError`. On the class, ``MOON.mu`` is the option itself; on a strategy
    it is the value.

    Parameters
    ----------
    key : str
        Key of the run config.
    default : T
        The value that is used if none is given.
    values : ValueType[T]
        The allowed values.
    meaning : str
        What the option does, for the documentation. Not a sentence, no full stop.
    fedavg : T, optional
        The value with which the method is FedAvg, bit for bit, the other options having
        their defaults. Where several options have such a value, all of them must be set
        to it. None if there is no such value.
    to_clients : bool or str (default: False)
        Whether the clients get the value in the config of each train message. Its key
        there is the key of the run config, or the text given here.
    """

    argument: str
    """Name of the attribute and of the constructor's argument."""

    def __init__(
        self,
        key: str,
        default: T,
        values: ValueType[T],
        meaning: str,
        *,
        fedavg: T | None = None,
        to_clients: bool | str = False,
    ) -> None:
        self.key, self.default, self.values = key, default, values
        self.meaning, self.fedavg = meaning, fedavg
        self.message_key = key if to_clients is True else (to_clients or None)

    def __set_name__(self, owner: type, name: str) -> None:
        self.argument = name

    @overload
    def __get__(self, strategy: None, owner: type) -> Option[T]: ...

    @overload
    def __get__(self, strategy: object, owner: type) -> T: ...

    def __get__(self, strategy: object | None, owner: type) -> Option[T] | T:
        if strategy is None:
            return self
        value: T = vars(strategy)[self.argument]
        return value

    def __set__(self, strategy: object, value: T) -> None:
        vars(strategy)[self.argument] = self.values.convert(self.argument, value)


def options_of(strategy: type) -> tuple[Option[Any], ...]:
    """Return the options of a strategy class, in the order of their declaration."""
    options = {
        name: value
        for base in reversed(strategy.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, Option)
    }
    return tuple(options.values())
