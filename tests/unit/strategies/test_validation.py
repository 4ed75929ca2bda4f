"""What ``LayerSelection`` refuses, and what the message says."""

import numpy as np
import pytest
from flwr.app import ConfigRecord

from strategies import FLFAFedAdam, FLFAFedAvg, FLFAFedAvgM, LayerSelection
from tests.unit.strategies.fakes import FakeGrid, noisy_client, record

CLASSES = [LayerSelection, FLFAFedAvg, FLFAFedAvgM, FLFAFedAdam]
AB = ["a", "b"]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"layers": AB, "rule": "smallest"}, "'smallest'.*lowest.*none"),
        ({"layers": AB, "rule": ""}, "unknown"),
        ({"layers": AB, "rule": "Lowest"}, "'Lowest'"),
        ({"layers": AB, "num_layers": 0}, "num_layers.*0"),
        ({"layers": AB, "num_layers": -1}, "num_layers.*-1"),
        ({"layers": AB, "num_layers": 0, "rule": "none"}, "num_layers.*0"),
        ({"layers": AB, "num_layers": 3}, "3.*2 candidate"),
        ({"layers": AB, "num_layers": 3, "rule": "highest"}, "3.*2 candidate"),
        ({"layers": AB, "num_layers": 3, "rule": "auto"}, "3.*2 candidate"),
        ({"layers": AB, "num_layers": 3, "rule": "random"}, "3.*2 candidate"),
        ({"layers": ["a", "b", "a"]}, "twice"),
        ({"layers": ["a", "a"], "rule": "none"}, "twice"),
        ({"layers": "conv1"}, "sequence.*'conv1'"),
        ({"layers": "conv1", "rule": "none"}, "'conv1'"),
        ({"layers": ""}, "sequence"),
        ({"layers": []}, "no layers"),
        ({"layers": [], "rule": "highest"}, "no layers"),
        ({"layers": [], "rule": "random"}, "no layers"),
        ({"layers": [], "rule": "auto"}, "no layers"),
        ({"layers": [], "rule": "fixed", "fixed_layers": ["a"]}, "no layers"),
        ({"layers": AB, "rule": "fixed"}, "fixed_layers"),
        ({"layers": AB, "rule": "fixed", "fixed_layers": []}, "fixed_layers"),
        ({"layers": AB, "rule": "lowest", "fixed_layers": ["a"]}, "rule='lowest'"),
        ({"layers": AB, "rule": "none", "fixed_layers": ["a"]}, "rule='none'"),
        ({"layers": AB, "rule": "fixed", "fixed_layers": ["a", "z"]}, "z.*candidates"),
        ({"layers": ["a"], "rule": "fixed", "fixed_layers": "a"}, "fixed_layers"),
        ({"layers": AB, "rule": "fixed", "fixed_layers": ["a", "a"]}, "twice"),
        ({"layers": AB, "rule": ["lowest"]}, "unknown"),
        ({"layers": AB, "num_layers": 1.5}, "num_layers.*1.5"),
        ({"layers": AB, "rule": "random", "selection_seed": -1}, "selection_seed.*-1"),
        ({"layers": AB, "observed_layers": "conv"}, "observed_layers.*'conv'"),
        ({"layers": [1, 2]}, "sequence of names"),
    ],
)
def test_refused(cls, kwargs, message):
    with pytest.raises(ValueError, match=message):
        cls(**kwargs)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"layers": AB, "num_layer": 1},
        {"layers": AB, "rules": "lowest"},
        {"layers": AB, "fraction_fit": 0.5},
        {"layers": AB, "Seed": 1},
    ],
)
def test_a_missing_or_misspelt_keyword(cls, kwargs):
    with pytest.raises(TypeError):
        cls(**kwargs)


@pytest.mark.parametrize("cls", CLASSES)
def test_keywords_only(cls):
    with pytest.raises(TypeError):
        cls(AB)


def test_a_keyword_of_another_base():
    with pytest.raises(TypeError, match="server_momentum"):
        FLFAFedAvg(layers=AB, server_momentum=0.9)
    assert FLFAFedAvgM(layers=AB, server_momentum=0.9).server_momentum == 0.9


@pytest.mark.parametrize(
    "kwargs",
    [
        {"layers": [], "rule": "none"},
        {"layers": ("a",)},
        {"layers": AB, "num_layers": 2},
        {"layers": AB, "num_layers": 3, "rule": "none"},
        {"layers": ["a"], "num_layers": 5, "rule": "fixed", "fixed_layers": ("a",)},
        {"layers": AB, "rule": "fixed", "fixed_layers": ["b", "a"]},
        {"layers": AB, "observed_layers": iter(["c"])},
    ],
)
def test_accepted(kwargs):
    strategy = LayerSelection(**kwargs)
    assert strategy.layers == list(kwargs["layers"])
    assert strategy.selected == list(kwargs.get("fixed_layers", ()))
    assert (strategy.scores, strategy.first_scores) == ({}, {})


def test_later_changes_of_the_arguments_do_not_matter():
    layers, fixed = ["a", "b"], ["a"]
    strategy = LayerSelection(layers=layers, rule="fixed", fixed_layers=fixed)
    layers.append("c")
    fixed.append("c")
    assert strategy.layers == ["a", "b"]
    assert strategy.selected == ["a"]
    assert list(strategy.fixed_layers) == ["a"]


@pytest.mark.parametrize("rule", ["lowest", "random", "none"])
@pytest.mark.parametrize("which", ["layers", "observed_layers"])
def test_a_layer_without_an_array_in_the_first_round(which, rule):
    """Found before a message is sent; both names and the model's are in the message."""
    arrays = record({"conv.weight": np.zeros(2), "bn.bias": np.zeros(2)})
    kwargs = {"layers": ["conv"], "rule": rule, which: ["conv", "fc", "bn"]}
    strategy = LayerSelection(**kwargs)
    grid = FakeGrid(2, noisy_client)
    with pytest.raises(
        ValueError, match=r"fc\.weight.*bn\.weight.*conv\.weight, bn\.bias"
    ):
        list(strategy.configure_train(1, arrays, ConfigRecord(), grid))


def test_the_name_of_an_array_is_not_the_name_of_a_layer():
    arrays = record({"conv.weight": np.zeros(2)})
    strategy = LayerSelection(layers=["conv.weight"])
    with pytest.raises(ValueError, match=r"conv\.weight\.weight"):
        list(
            strategy.configure_train(
                1, arrays, ConfigRecord(), FakeGrid(2, noisy_client)
            )
        )
