from __future__ import annotations

import re
from typing import Any

import pytest
import tomli

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from tests.federation import ROOT, default_keys

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


def problems(**changes: Any) -> list[str]:
    keys = default_keys() | {k.replace("_", "-"): v for k, v in changes.items()}
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(keys)
    return str(caught.value).splitlines()[1:]


def test_the_defaults_are_a_run() -> None:
    config = RunConfig.parse(default_keys())
    assert config.as_keys() == default_keys()
    assert (config.algorithm, config.flfa, config.dataset) == (
        "fedavg",
        "lowest",
        "digits",
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_is_a_run(path: Any) -> None:
    RunConfig.parse(default_keys() | tomli.loads(path.read_text()))


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
    config = RunConfig.parse(default_keys() | tomli.loads(text))
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
    assert config.learning_rate_in(1) == 0.01
    assert config.learning_rate_in(3) == pytest.approx(0.01 * 0.998 * 0.998)


def test_configs_differ_only_in_the_arm() -> None:
    arms = [f"digits_{name}" for name in ALGORITHMS]
    for bp in (*arms, "bloodmnist_fedavg"):
        one, other = (
            tomli.loads((ROOT / "configs" / f"{name}.toml").read_text())
            for name in (bp, f"{bp}_flfa")
        )
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
        assert re.search(pattern, line), line


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, "0.1", True, None])
def test_a_number_must_be_one(value: Any) -> None:
    assert len(problems(weight_decay=value)) == 1


def test_a_column_belongs_to_a_natural_partition() -> None:
    assert "partition-column is empty" in problems(partitioner="natural")[0]
    assert "set partitioner to 'natural'" in problems(partition_column="writer")[0]
    keys = {"partitioner": "natural", "partition-column": "writer"}
    assert RunConfig.parse(default_keys() | keys).partition_column == "writer"


def test_a_whole_number_is_a_float_and_stays_equal() -> None:
    config = RunConfig.parse(default_keys() | {"learning-rate": 1})
    assert isinstance(config.learning_rate, float)
    assert config.learning_rate == 1.0
    assert problems(seed=1.0)


def test_a_missing_key_is_named() -> None:
    keys = default_keys()
    del keys["seed"]
    with pytest.raises(ConfigError, match=r"seed is missing; it must be a whole"):
        RunConfig.parse(keys)


def test_names_of_fixed_layers() -> None:
    keys = {"flfa": "fixed", "fixed-fa-layers": " conv2 ,head,"}
    assert RunConfig.parse(default_keys() | keys).fixed_layers == ("conv2", "head")
    assert "set flfa to 'fixed'" in problems(fixed_fa_layers="conv2")[0]


def test_a_fixed_layer_is_named_once() -> None:
    (found,) = problems(flfa="fixed", fixed_fa_layers="conv2, head, conv2")
    assert "names a layer twice" in found


def test_direct_feedback_needs_the_whole_model_in_fedsols_second_pass() -> None:
    keys = {"algorithm": "fedsol", "fedsol_part": "head", "feedback": "dfa"}
    (found,) = problems(**keys)
    assert "fedsol-part is 'head', but feedback is 'dfa'" in found
    for other in ({"flfa": "none"}, {"feedback": "random"}, {"fedsol_part": "all"}):
        changed = {k.replace("_", "-"): v for k, v in {**keys, **other}.items()}
        RunConfig.parse(default_keys() | changed)


@pytest.mark.parametrize("scaling", ["channel", "none"])
def test_direct_feedback_has_nothing_to_rescale(scaling: str) -> None:
    (found,) = problems(feedback="dfa", scaling=scaling)
    assert f"scaling is '{scaling}'" in found
    assert "feedback is 'dfa'" in found
    for keys in ({"feedback": "dfa"}, {"feedback": "random", "scaling": scaling}):
        RunConfig.parse(default_keys() | keys)


@pytest.mark.parametrize(
    ("layers", "rule", "text"),
    [
        ("", "fixed", "fixed-fa-layers is empty"),
        (" , ", "fixed", "fixed-fa-layers is empty"),
        ("conv2", "lowest", "fixed-fa-layers is 'conv2', but flfa is 'lowest'"),
    ],
)
def test_contradictions_are_named_together(layers: str, rule: str, text: str) -> None:
    found = problems(
        flfa=rule, fixed_fa_layers=layers, feedback="dfa", scaling="channel"
    )
    assert len(found) == 2
    assert text in found[0]
    assert "scaling is 'channel', but feedback is 'dfa'" in found[1]


DFA = {"feedback": "dfa", "scaling": "none"}
FIXED = {"flfa": "fixed"}


@pytest.mark.parametrize(
    ("changes", "wrong", "contradictions"),
    [
        ({**DFA, "flfa": "best"}, ["flfa is 'best'"], ["scaling is 'none'"]),
        ({**DFA, "fixed_fa_layers": 3}, ["fixed-fa-layers is 3"], ["scaling is"]),
        ({**FIXED, "feedback": "back"}, ["feedback is 'back'"], ["fixed-fa-layers is"]),
        ({**FIXED, "scaling": 1}, ["scaling is 1"], ["fixed-fa-layers is empty"]),
        ({**DFA, **FIXED, "seed": -1}, ["seed is -1"], ["fixed-fa-", "scaling is"]),
        # A key that is wrong itself contradicts nothing.
        ({"feedback": "dfa", "scaling": "big"}, ["scaling is 'big'"], []),
        ({"feedback": "DFA", "scaling": "none"}, ["feedback is 'DFA'"], []),
        ({"flfa": "best", "fixed_fa_layers": "conv2"}, ["flfa is 'best'"], []),
        ({"flfa": "fixed", "fixed_fa_layers": None}, ["fixed-fa-layers is None"], []),
    ],
)
def test_a_wrong_value_hides_no_contradiction_of_others(
    changes: dict[str, Any], wrong: list[str], contradictions: list[str]
) -> None:
    found = problems(**changes)
    assert len(found) == len(wrong + contradictions)
    for line, text in zip(found, wrong + contradictions, strict=True):
        assert text in line


@pytest.mark.parametrize("key", ["flfa", "fixed-fa-layers", "feedback", "scaling"])
def test_a_missing_key_contradicts_nothing(key: str) -> None:
    keys = default_keys()
    del keys[key]
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(keys)
    (found,) = str(caught.value).splitlines()[1:]
    assert f"{key} is missing" in found


@pytest.mark.parametrize("value", ["none", "crop", "crop-flip"])
def test_augmentations(value: str) -> None:
    config = RunConfig.parse(default_keys() | {"augmentation": value})
    assert config.augmentation == value
    assert "one of none, crop, crop-flip" in problems(augmentation="flip")[0]


@pytest.mark.parametrize("value", ["true", 1, 0, None])
def test_diagnostics_are_true_or_false(value: Any) -> None:
    assert RunConfig.parse(default_keys() | {"diagnostics": True}).diagnostics is True
    assert RunConfig.parse(default_keys()).diagnostics is False
    assert f"diagnostics is {value!r}" in problems(diagnostics=value)[0]


def test_the_config_is_frozen_and_hashable() -> None:
    config = RunConfig.parse(default_keys())
    with pytest.raises(AttributeError):
        config.seed = 1  # type: ignore[misc]
    assert hash(config) == hash(RunConfig.parse(default_keys()))


def test_every_key_is_explained_where_it_is_set_and_in_the_readme() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split("[tool.flwr.app.config]")[1].split("\n[")[0]
    explained = dict(re.findall(r"^([\w-]+) = .*? # (\S.*)$", section, re.MULTILINE))
    assert explained.keys() == default_keys().keys()
    readme = (ROOT / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| `(.*?)` \|", readme, re.MULTILINE))
    assert {key: tomli.loads(f"x = {rows[key]}")["x"] for key in rows} == default_keys()
