"""The published numbers, compared with values that were read from the paper again."""

from __future__ import annotations

import itertools
import tomllib
from typing import Any

import pytest

from flfa_app.data.sources import DATASETS
from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis import paper
from flfa_app.experiments.analysis.paper import paper_tables, published_numbers
from flfa_app.methods import ALGORITHMS
from tests.federation import default_keys

TABLES = (
    "table1 complex_datasets beta01 resnet50 clients200 epochs15 participation005 "
    "fa_layers ablation feddyn cifar10_1 selection"
)
# Table, quantity, data set or part, published number, settings.
SPOT_VALUES = """
table1 | accuracy | bloodmnist | 61.73 | algorithm = "fedavg"
table1 | accuracy | cifar10 | 65.81 | flfa = "none"
table1 | accuracy | fashionmnist | 85.03 | algorithm = "fedavgm"
table1 | accuracy | organsmnist | 53.87 | algorithm = "fedacg"
table1 | time | cifar10 | 3.37 | algorithm = "fedsol", flfa = "highest"
table1 | time | organsmnist | 1.71 | algorithm = "moon", flfa = "none"
complex_datasets | accuracy | imagenet100 | 43.29 | algorithm = "fedsol"
complex_datasets | accuracy | cifar100 | 42.48 | flfa = "none"
beta01 | accuracy | cifar100 | 45.12 | algorithm = "moon"
beta01 | average-gain | pathmnist | 2.24 |
resnet50 | accuracy | bloodmnist | 82.19 | algorithm = "fedlc"
resnet50 | average-gain | cifar100 | 0.01 |
clients200 | accuracy | organsmnist | 57.29 | algorithm = "fedrs"
epochs15 | accuracy | fashionmnist | 68.4 | algorithm = "fedavgm", flfa = "none"
participation005 | accuracy | cifar100 | 44.56 | algorithm = "fedprox"
fa_layers | accuracy | cifar10 | 71.48 | algorithm = "fedrs", num-fa-layers = 3
fa_layers | accuracy | bloodmnist | 63.5 | algorithm = "fedacg", num-fa-layers = 2
fa_layers | average-gain | fashionmnist | -0.99 | num-fa-layers = 3
ablation | accuracy | cifar10 | 68.05 |
ablation | accuracy | cifar10 | 64.02 | feedback = "random"
ablation | accuracy | cifar10 | 65.21 | scaling = "none"
ablation | accuracy | cifar10 | "-" | feedback = "dfa"
feddyn | accuracy | cifar10 | 74.83 | algorithm = "feddyn"
feddyn | accuracy | pathmnist | "-" | algorithm = "feddyn"
cifar10_1 | extra-accuracy | cifar10.1-v6 | 55.16 | dataset = "cifar10"
selection | selection-frequency | stage 1 | 24.96 | flfa = "lowest"
selection | selection-frequency | classifier | 15.25 | flfa = "highest"
"""


def settings(**keys: Any) -> dict[str, Any]:
    return default_keys() | keys


def test_spot_values() -> None:
    for row in SPOT_VALUES.strip().splitlines():
        table, quantity, part, number, keys = (text.strip() for text in row.split("|"))
        values = tomllib.loads(f"keys = {{ {keys} }}\nnumber = {number}")
        numbers = published_numbers(table, quantity, settings(**values["keys"]))
        assert numbers[part] == values["number"], row


def test_tables_and_numbers_that_the_paper_does_not_have() -> None:
    assert paper_tables() == TABLES.split()
    selection = ("selection", "selection-frequency")
    assert published_numbers("", "accuracy", settings()) == {}
    assert published_numbers("table1", "auc", settings()) == {}
    assert published_numbers("table1", "accuracy", settings(algorithm="scaffold")) == {}
    # The paper has selections for the rules lowest and highest only.
    assert published_numbers(*selection, settings(flfa="auto")) == {}
    for rule in ("lowest", "highest"):
        shares = published_numbers(*selection, settings(flfa=rule))
        assert len(shares) == 10
        assert sum(map(float, shares.values())) == pytest.approx(100)
    with pytest.raises(ConfigError, match=r"'tabel1'.*table1, complex_datasets"):
        published_numbers("tabel1", "accuracy", settings())


def test_lines_have_the_keys_of_a_run_config() -> None:
    for line in itertools.chain.from_iterable(paper._read_numbers().values()):
        assert line["when"].keys() <= default_keys().keys()
        assert line["when"].get("algorithm", "fedavg") in ALGORITHMS
        for quantity in ("accuracy", "time", "average-gain"):
            assert set(line.get(quantity, {})) <= set(DATASETS)


@pytest.mark.parametrize(
    "table", ["beta01", "resnet50", "clients200", "epochs15", "participation005"]
)
def test_average_gains_follow_from_the_accuracies(table: str) -> None:
    """The paper's last row is the mean of the rows above it, to two decimals."""
    lines = paper._read_numbers()[table]
    accuracies = {
        (line["when"]["algorithm"], line["when"]["flfa"]): line["accuracy"]
        for line in lines
        if "accuracy" in line
    }
    methods = {method for method, _ in accuracies}
    assert len(methods) == 6
    (gains,) = (line["average-gain"] for line in lines if "average-gain" in line)
    for dataset, gain in gains.items():
        differences = [
            accuracies[method, "flfa"][dataset] - accuracies[method, "none"][dataset]
            for method in methods
        ]
        assert sum(differences) / 6 == pytest.approx(gain, abs=0.0051)
