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
    assert list(config.as_keys().items()) == list(default_keys().items())
    assert (config.algorithm, config.flfa, config.dataset) == (
        "fedavg",
        "lowest",
        "digits",
    )


def test_options_of_methods_are_part_of_the_config() -> None:
    config = parse(moon_mu=2)
    assert config != parse()
    assert config.as_keys() == default_keys() | {"moon-mu": 2.0}
    assert type(config.as_keys()["moon-mu"]) is float
    assert problems(moon_mu=-1) == ("moon-mu is -1; it must be a number from 0",)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_is_valid(path: Path) -> None:
    RunConfig.parse(default_keys() | tomllib.loads(path.read_text()))


# Rounds, from the paper's setup and its section on complex data sets.
PAPER = {
    "bloodmnist_fedavg_flfa": 100,
    "bloodmnist": 100,
    "organcmnist": 100,
    "organsmnist": 100,
    "pathmnist": 100,
    "fashionmnist": 100,
    "cifar10": 500,
    "cifar100": 500,
    "imagenet100": 100,
}


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_configs_have_the_papers_settings(name: str) -> None:
    text = (ROOT / "configs" / f"{name}.toml").read_text()
    config = RunConfig.parse(default_keys() | tomllib.loads(text))
    assert (config.learning_rate, config.momentum, config.weight_decay) == (
        0.01,
        0.9,
        0.001,
    )
    assert (config.batch_size, config.local_epochs, config.lr_decay) == (64, 5, 0.998)
    assert (config.num_server_rounds, config.dirichlet_beta) == (PAPER[name], 0.3)
    assert (config.fraction_train, config.min_train_nodes) == (0.1, 10)
    assert config.dataset == name.partition("_")[0]
    assert config.model == "mobilenet_v2"


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


def test_a_whole_number_is_accepted_as_a_float() -> None:
    config = parse(learning_rate=1)
    assert type(config.learning_rate) is float
    assert config.learning_rate == 1.0


@pytest.mark.parametrize("key", ["seed", "flfa", "fixed-fa-layers", "feedback"])
def test_a_missing_key_is_the_only_problem(key: str) -> None:
    """It contradicts no other key."""
    keys = default_keys()
    del keys[key]
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(keys)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} is missing; it must be ")


def test_partition_column_belongs_to_a_natural_partition() -> None:
    assert "partition-column is empty" in problems(partitioner="natural")[0]
    assert "set partitioner to 'natural'" in problems(partition_column="writer")[0]
    config = parse(partitioner="natural", partition_column="writer")
    assert config.partition_column == "writer"


def test_fixed_layers() -> None:
    config = parse(flfa="fixed", fixed_fa_layers=" conv2 ,head,")
    assert config.fixed_layers == ("conv2", "head")
    (problem,) = problems(flfa="fixed", fixed_fa_layers="conv2, head, conv2")
    assert "names a layer twice" in problem


def test_fedsol_on_the_head_cannot_have_direct_feedback() -> None:
    keys = {"algorithm": "fedsol", "fedsol_part": "head", "feedback": "dfa"}
    (problem,) = problems(**keys)
    assert "fedsol-part is 'head', but feedback is 'dfa'" in problem
    for other in (
        {"flfa": "none"},
        {"feedback": "random"},
        {"fedsol_part": "all"},
        {"algorithm": "fedavg"},
    ):
        parse(**(keys | other))


DFA = {"feedback": "dfa", "scaling": "none"}
FIXED = {"flfa": "fixed"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (DFA, ["scaling is 'none', but feedback is 'dfa'"]),
        ({"feedback": "dfa", "scaling": "channel"}, ["scaling is 'channel', but"]),
        (FIXED, ["fixed-fa-layers is empty"]),
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


def test_the_config_is_frozen_and_hashable() -> None:
    config = parse()
    with pytest.raises(AttributeError):
        config.seed = 1  # type: ignore[misc]
    assert hash(config) == hash(parse())
