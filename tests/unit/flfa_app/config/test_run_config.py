"""Parsing and checking a run config."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from tests.federation import ROOT, default_keys

DFA = {"feedback": "dfa", "scaling": "none"}
FIXED = {"flfa": "fixed"}
FEDSOL_HEAD = {"algorithm": "fedsol", "fedsol_part": "head", "feedback": "dfa"}
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


def parse(**changes: Any) -> RunConfig:
    keys = {key.replace("_", "-"): value for key, value in changes.items()}
    return RunConfig.parse(default_keys() | keys)


def problems(**changes: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(**changes)
    return caught.value.problems


def test_defaults() -> None:
    config = parse()
    assert config == RunConfig()
    assert hash(config) == hash(RunConfig())
    assert list(config.as_keys().items()) == list(default_keys().items())


def test_options_of_methods_are_part_of_the_config() -> None:
    """A whole number is accepted as a float."""
    config = parse(moon_mu=2, learning_rate=1)
    assert config != parse(learning_rate=1)
    assert config.as_keys() == default_keys() | {"moon-mu": 2.0, "learning-rate": 1.0}
    assert type(config.as_keys()["moon-mu"]) is type(config.learning_rate) is float
    assert problems(moon_mu=-1) == ("moon-mu is -1; it must be a number from 0",)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_is_valid(path: Path) -> None:
    RunConfig.parse(default_keys() | tomllib.loads(path.read_text()))


PAPER = {  # from its setup and its section on complex data sets
    "learning-rate": 0.01,
    "momentum": 0.9,
    "weight-decay": 0.001,
    "batch-size": 64,
    "local-epochs": 5,
    "lr-decay": 0.998,
    "dirichlet-beta": 0.3,
    "fraction-train": 0.1,
    "min-train-nodes": 10,
    "model": "mobilenet_v2",
}
DATASETS = "bloodmnist organcmnist organsmnist pathmnist fashionmnist cifar10 cifar100"


@pytest.mark.parametrize(
    "name", ["bloodmnist_fedavg_flfa", "imagenet100", *DATASETS.split()]
)
def test_the_paper_configs_have_the_papers_settings(name: str) -> None:
    text = (ROOT / "configs" / f"{name}.toml").read_text()
    keys = RunConfig.parse(default_keys() | tomllib.loads(text)).as_keys()
    rounds = 500 if name.startswith("cifar") else 100
    expected = PAPER | {
        "num-server-rounds": rounds,
        "dataset": name.partition("_")[0],
    }
    assert {key: keys[key] for key in expected} == expected


def test_the_learning_rate_decays_after_each_round() -> None:
    config = parse(learning_rate=0.5, lr_decay=0.25)
    assert [config.learning_rate_in(r) for r in (1, 2, 3)] == [0.5, 0.125, 0.03125]


def test_config_files_with_and_without_flfa_differ_only_in_it() -> None:
    pairs = [(p, p.with_stem(p.stem.removesuffix("_flfa"))) for p in CONFIGS]
    pairs = [(flfa, plain) for flfa, plain in pairs if flfa != plain]
    assert len(pairs) > 10
    for flfa, plain in pairs:
        one, other = (tomllib.loads(path.read_text()) for path in (flfa, plain))
        assert {k for k in one | other if one.get(k) != other.get(k)} == {"flfa"}


def test_all_problems_are_named_at_once_with_key_value_and_cure() -> None:
    found = problems(
        learning_rate="fast",
        seed=True,
        num_server_rounds=0,
        model="resnet19",
        fraction_train=0,
        momentum=1,
        flfa="fixed",
        sead=1,
    )
    expected = [
        r"sead is not a key; did you mean seed\?",
        r"num-server-rounds is 0; it must be a whole number, 1 or more",
        r"seed is True; it must be a whole number, 0 or more",
        r"model is 'resnet19'; it must be one of cnn, .*resnet18",
        r"fraction-train is 0; it must be a number above 0 to 1",
        r"learning-rate is 'fast'; it must be a number above 0",
        r"momentum is 1; it must be a number from 0 to below 1",
        r"fixed-fa-layers is empty, but flfa is 'fixed'",
    ]
    assert len(found) == len(expected)
    for line, pattern in zip(found, expected, strict=True):
        assert re.match(pattern, line), line


@pytest.mark.parametrize("key", ["seed", "flfa", "fixed-fa-layers", "feedback"])
def test_a_missing_key_is_the_only_problem(key: str) -> None:
    """It contradicts no other key."""
    keys = default_keys()
    del keys[key]
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(keys)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} is missing; it must be ")


def test_keys_that_belong_together() -> None:
    config = parse(partitioner="natural", partition_column="writer")
    assert config.partition_column == "writer"
    config = parse(flfa="fixed", fixed_fa_layers=" conv2 ,head,")
    assert config.fixed_layers == ("conv2", "head")
    for other in (
        {"flfa": "none"},
        {"feedback": "random"},
        {"fedsol_part": "all"},
        {"algorithm": "fedavg"},
    ):
        parse(**(FEDSOL_HEAD | other))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (DFA, ["scaling is 'none', but feedback is 'dfa'"]),
        ({"feedback": "dfa", "scaling": "channel"}, ["scaling is 'channel', but"]),
        (FEDSOL_HEAD, ["fedsol-part is 'head', but feedback is 'dfa'"]),
        ({"partitioner": "natural"}, ["partition-column is empty"]),
        ({"partition_column": "writer"}, ["set partitioner to 'natural'"]),
        ({**FIXED, "fixed_fa_layers": "a, b, a"}, ["names a layer twice"]),
        ({**FIXED, "fixed_fa_layers": " , "}, ["fixed-fa-layers is empty"]),
        ({"fixed_fa_layers": "conv2"}, ["set flfa to 'fixed'"]),
        ({**DFA, **FIXED}, ["fixed-fa-layers is empty", "scaling is 'none'"]),
        # A wrong value hides no contradiction of others ...
        ({**DFA, "flfa": "best"}, ["flfa is 'best'", "scaling is 'none'"]),
        ({**FIXED, "feedback": "back"}, ["feedback is 'back'", "fixed-fa-layers is"]),
        # ... and contradicts nothing itself.
        ({"feedback": "dfa", "scaling": "big"}, ["scaling is 'big'"]),
        ({"feedback": "DFA", "scaling": "none"}, ["feedback is 'DFA'"]),
        ({"flfa": "best", "fixed_fa_layers": "conv2"}, ["flfa is 'best'"]),
        ({**FIXED, "fixed_fa_layers": None}, ["fixed-fa-layers is None"]),
    ],
)
def test_contradictions(changes: dict[str, Any], expected: list[str]) -> None:
    found = problems(**changes)
    assert len(found) == len(expected)
    for line, text in zip(found, expected, strict=True):
        assert text in line
