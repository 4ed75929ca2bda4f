"""The published numbers, compared with values that were read from the paper again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flfa_app.data.sources import DATASETS
from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.paper import (
    _read_numbers,
    paper_tables,
    published_numbers,
)
from flfa_app.methods import ALGORITHMS
from tests.federation import default_keys

TABLES = (
    "table1 complex_datasets beta01 resnet50 clients200 epochs15 participation005 "
    "fa_layers ablation feddyn cifar10_1 selection"
)
# Table, quantity, settings, data set or part, published number.
SPOT_VALUES: list[tuple[str, str, dict[str, Any], str, float | str]] = [
    ("table1", "accuracy", {"algorithm": "fedavg"}, "bloodmnist", 61.73),
    ("table1", "accuracy", {"flfa": "none"}, "cifar10", 65.81),
    ("table1", "accuracy", {"algorithm": "fedavgm"}, "fashionmnist", 85.03),
    ("table1", "accuracy", {"algorithm": "fedacg"}, "organsmnist", 53.87),
    ("table1", "time", {"algorithm": "fedsol", "flfa": "highest"}, "cifar10", 3.37),
    ("table1", "time", {"algorithm": "moon", "flfa": "none"}, "organsmnist", 1.71),
    ("complex_datasets", "accuracy", {"algorithm": "fedsol"}, "imagenet100", 43.29),
    ("complex_datasets", "accuracy", {"flfa": "none"}, "cifar100", 42.48),
    ("beta01", "accuracy", {"algorithm": "moon"}, "cifar100", 45.12),
    ("beta01", "average-gain", {}, "pathmnist", 2.24),
    ("resnet50", "accuracy", {"algorithm": "fedlc"}, "bloodmnist", 82.19),
    ("resnet50", "average-gain", {}, "cifar100", 0.01),
    ("clients200", "accuracy", {"algorithm": "fedrs"}, "organsmnist", 57.29),
    (
        "epochs15",
        "accuracy",
        {"algorithm": "fedavgm", "flfa": "none"},
        "fashionmnist",
        68.4,
    ),
    ("participation005", "accuracy", {"algorithm": "fedprox"}, "cifar100", 44.56),
    (
        "fa_layers",
        "accuracy",
        {"algorithm": "fedrs", "num-fa-layers": 3},
        "cifar10",
        71.48,
    ),
    (
        "fa_layers",
        "accuracy",
        {"algorithm": "fedacg", "num-fa-layers": 2},
        "bloodmnist",
        63.5,
    ),
    ("fa_layers", "average-gain", {"num-fa-layers": 3}, "fashionmnist", -0.99),
    ("ablation", "accuracy", {}, "cifar10", 68.05),
    ("ablation", "accuracy", {"feedback": "random"}, "cifar10", 64.02),
    ("ablation", "accuracy", {"scaling": "none"}, "cifar10", 65.21),
    ("ablation", "accuracy", {"feedback": "dfa"}, "cifar10", "-"),
    ("feddyn", "accuracy", {"algorithm": "feddyn"}, "cifar10", 74.83),
    ("feddyn", "accuracy", {"algorithm": "feddyn"}, "pathmnist", "-"),
    ("cifar10_1", "extra-accuracy", {"dataset": "cifar10"}, "cifar10.1-v6", 55.16),
    ("selection", "selection-frequency", {"flfa": "lowest"}, "stage 1", 24.96),
    ("selection", "selection-frequency", {"flfa": "highest"}, "classifier", 15.25),
]


def settings(**keys: Any) -> dict[str, Any]:
    return default_keys() | keys


def test_spot_values() -> None:
    for table, quantity, keys, part, number in SPOT_VALUES:
        numbers = published_numbers(table, quantity, settings(**keys))
        assert numbers[part] == number, (table, keys)


def test_tables() -> None:
    assert paper_tables() == TABLES.split()


def test_numbers_that_the_paper_does_not_have() -> None:
    assert published_numbers("", "accuracy", settings()) == {}
    assert published_numbers("table1", "auc", settings()) == {}
    assert published_numbers("table1", "accuracy", settings(algorithm="scaffold")) == {}
    # The paper has selections for the rules lowest and highest only.
    assert (
        published_numbers("selection", "selection-frequency", settings(flfa="auto"))
        == {}
    )


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'tabel1'.*table1, complex_datasets"):
        published_numbers("tabel1", "accuracy", settings())


def test_lines_have_the_keys_of_a_run_config() -> None:
    for line in itertools.chain.from_iterable(_read_numbers().values()):
        assert line["when"].keys() <= default_keys().keys()
        assert line["when"].get("algorithm", "fedavg") in ALGORITHMS
        for quantity in ("accuracy", "time", "average-gain"):
            assert set(line.get(quantity, {})) <= set(DATASETS)


@pytest.mark.parametrize(
    "table", ["beta01", "resnet50", "clients200", "epochs15", "participation005"]
)
def test_average_gains_follow_from_the_accuracies(table: str) -> None:
    """The paper's last row is the mean of the rows above it, to two decimals."""
    lines = _read_numbers()[table]
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


@pytest.mark.parametrize("rule", ["lowest", "highest"])
def test_selections_sum_up_to_100_percent(rule: str) -> None:
    shares = published_numbers("selection", "selection-frequency", settings(flfa=rule))
    assert len(shares) == 10
    assert sum(map(float, shares.values())) == pytest.approx(100)
