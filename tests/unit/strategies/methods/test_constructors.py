"""Constructors: defaults, conversion of the arguments, and what is refused."""

import numpy as np
import pytest

from strategies.methods.feddyn import FedDyn
from strategies.methods.fedprox import FLFAFedProx
from strategies.methods.scaffold import Scaffold
from strategies.options import options_of
from tests.unit.strategies.methods.cases import METHODS

# From the papers and repositories that docs/methods.md names.
DEFAULTS = {
    "dampened": {
        "form": "dampened",
        "server_momentum": 0.1,
        "server_learning_rate": 1.0,
    },
    "FedACG": {"lookahead": 0.85, "beta": 0.002},
    "FedDyn": {"alpha": 0.01},
    "Scaffold": {"global_learning_rate": 1.0},
    "MOON": {"mu": 0.1, "temperature": 0.5},
    "FedSOL": {"rho": 1.0, "variant": "adaptive", "part": "all"},
    "FedRS": {"alpha": 0.5, "variant": "hard"},
    "FedLC": {"tau": 1.0},
}
NUMBERS = [
    (name, argument)
    for name, defaults in DEFAULTS.items()
    for argument, value in defaults.items()
    if isinstance(value, float)
]


def build(name, **arguments):
    if name in ("FedDyn", "Scaffold"):
        arguments = {"num_clients": 4, **arguments}
    return METHODS[name].plain(**arguments)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    strategy = build(name)
    for argument, value in DEFAULTS[name].items():
        assert getattr(strategy, argument) == value
    declared = options_of(type(strategy))
    assert {x.argument: x.default for x in declared} == DEFAULTS[name]


def test_fedprox_has_flowers_default():
    """0, as in Flower's class; the run config has its own default."""
    assert FLFAFedProx(layers=["fc"]).proximal_mu == 0.0
    assert FLFAFedProx.proximal_mu.default == 0.1


@pytest.mark.parametrize(("name", "argument"), [*NUMBERS, ("FedProx", "proximal_mu")])
def test_numbers_of_numpy_and_in_texts(name, argument):
    """The messages need plain floats."""
    for given in (np.float32(0.25), "0.25"):
        strategy = METHODS[name].build(flfa=True, **{argument: given})
        assert getattr(strategy, argument) == 0.25
        assert type(getattr(strategy, argument)) is float
    for wrong in (-1.0, "fast", None, True, float("nan")):
        with pytest.raises(ValueError, match=f"^{argument} is {wrong!r}; it must be a"):
            METHODS[name].build(flfa=True, **{argument: wrong})


@pytest.mark.parametrize("cls", [FedDyn, Scaffold])
def test_number_of_clients(cls):
    for given in (np.int64(3), "3", 3.0):
        strategy = cls(num_clients=given)
        assert strategy.num_clients == 3
        assert type(strategy.num_clients) is int
    for wrong in (0, 2.5, "many", None):
        with pytest.raises(ValueError, match=r"num_clients is .*, 1 or more"):
            cls(num_clients=wrong)
    with pytest.raises(TypeError, match="num_clients"):
        cls()


@pytest.mark.parametrize(
    ("name", "argument", "names"),
    [
        ("dampened", "form", "dampened, heavy-ball, nesterov"),
        ("FedSOL", "variant", "adaptive, fixed"),
        ("FedSOL", "part", "all, head"),
        ("FedRS", "variant", "hard, soft"),
    ],
)
def test_an_unknown_name(name, argument, names):
    for wrong in ("polyak", "", None):
        with pytest.raises(ValueError, match=f"{argument} is {wrong!r}.* {names}"):
            METHODS[name].build(**{argument: wrong})


@pytest.mark.parametrize("flfa", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_arguments_that_do_not_exist(name, flfa):
    """Misspelt ones, and those of other methods."""
    own = METHODS[name].own
    others = {k: v for case in METHODS.values() for k, v in case.own.items()}
    others |= {"momentum": 0.5, "fraction_fit": 0.5, "parameter": ()}
    for argument in others.keys() - own.keys():
        with pytest.raises(TypeError, match=argument):
            METHODS[name].build(flfa=flfa, **{argument: others[argument]})


def test_parameters_are_several_names():
    with pytest.raises(ValueError, match="parameters must be a set of names, not 'fc'"):
        METHODS["MOON"].plain(parameters="fc")
    assert METHODS["MOON"].plain(parameters=["fc"]).parameters == {"fc"}
