"""What the constructors refuse."""

import pytest

from strategies.methods.feddyn import FedDyn, FLFAFedDyn
from strategies.methods.momentum import FLFAServerMomentum, ServerMomentum
from strategies.methods.scaffold import FLFAScaffold, Scaffold
from tests.unit.strategies.methods.cases import METHODS

MISSPELT = ["momentum", "server_moment", "lamda", "fraction_fit", "parameter", "Mu"]


@pytest.mark.parametrize("wrong", MISSPELT)
@pytest.mark.parametrize("flfa", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_misspelt_argument(name, flfa, wrong):
    METHODS[name].build(flfa=flfa)  # without it there is nothing to complain about
    with pytest.raises(TypeError, match=wrong):
        METHODS[name].build(flfa=flfa, **{wrong: 0.5})


@pytest.mark.parametrize("flfa", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_an_argument_of_another_method(name, flfa):
    """No method takes all of these."""
    mine = METHODS[name].own
    others = {k: v for case in METHODS.values() for k, v in case.own.items()}
    for argument in others.keys() - mine.keys():
        with pytest.raises(TypeError, match=argument):
            METHODS[name].build(flfa=flfa, **{argument: others[argument]})


@pytest.mark.parametrize("name", [name for name in METHODS if name != "FedProx"])
def test_keywords_only(name):
    case = METHODS[name]
    with pytest.raises(TypeError, match="positional"):
        case.plain(0.5, **case.own)
    with pytest.raises(TypeError, match="positional"):
        case.flfa(["fc"], **case.own)


@pytest.mark.parametrize("form", ["", "Dampened", "heavy_ball", "polyak", None])
def test_an_unknown_form(form):
    with pytest.raises(ValueError, match="dampened, heavy-ball, nesterov"):
        ServerMomentum(form=form)
    with pytest.raises(ValueError, match="dampened, heavy-ball, nesterov"):
        FLFAServerMomentum(form=form, layers=["fc"])


@pytest.mark.parametrize("cls", [FedDyn, Scaffold])
def test_the_number_of_clients_has_no_default(cls):
    with pytest.raises(TypeError, match="num_clients"):
        cls()


@pytest.mark.parametrize("cls", [FLFAFedDyn, FLFAScaffold])
def test_nor_has_it_with_flfa(cls):
    with pytest.raises(TypeError, match="num_clients"):
        cls(layers=["fc"])
    with pytest.raises(TypeError, match="layers"):
        cls(num_clients=2)


@pytest.mark.parametrize("name", METHODS)
def test_flowers_own_arguments_arrive(name):
    for flfa in (False, True):
        strategy = METHODS[name].build(
            flfa=flfa, fraction_train=0.25, min_train_nodes=3
        )
        assert (strategy.fraction_train, strategy.min_train_nodes) == (0.25, 3)
