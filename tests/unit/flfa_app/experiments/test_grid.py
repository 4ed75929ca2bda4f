"""Grid files, written by the tests: what follows from a good one, what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.paper import differing_keys, paper_tables
from flfa_app.experiments.grid import read_grid
from flfa_app.results.metrics import METRICS
from tests.federation import ROOT, default_keys, run_app

GOOD = """
title = "Two methods"
nodes = 6
seeds = [0, 1]
[keys]
num-server-rounds = 2
[axes.dataset.digits]
dataset = "digits"
[axes.method.fedavg]
[axes.method.fedprox]
algorithm = "fedprox"
fedprox-mu = 0.5
[axes.flfa.none]
flfa = "none"
[axes.flfa.lowest]
"""


def written(folder: Path, text: str, name: str = "grid.toml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_every_combination_is_a_cell(tmp_path: Path) -> None:
    """1 data set x 2 methods x 2 rules x 2 seeds; the last axis changes fastest."""
    file = read_grid(written(tmp_path, GOOD))
    assert [cell.id for cell in file.cells] == [
        "digits-fedavg-none-s0",
        "digits-fedavg-none-s1",
        "digits-fedavg-lowest-s0",
        "digits-fedavg-lowest-s1",
        "digits-fedprox-none-s0",
        "digits-fedprox-none-s1",
        "digits-fedprox-lowest-s0",
        "digits-fedprox-lowest-s1",
    ]
    assert file.spec.axes == {
        "dataset": ["digits"],
        "method": ["fedavg", "fedprox"],
        "flfa": ["none", "lowest"],
    }
    assert (file.spec.metric, file.spec.table) == ("score", "")
    assert (file.spec.columns, file.spec.seeds) == ("dataset", [0, 1])


def test_a_cell_has_the_whole_run_config(tmp_path: Path) -> None:
    cell = read_grid(written(tmp_path, GOOD)).cells[-1]
    expected = {
        **default_keys(),
        "num-server-rounds": 2,
        "algorithm": "fedprox",
        "fedprox-mu": 0.5,
        "seed": 1,
    }
    del expected["output-dir"]
    assert cell.run_config == expected
    assert cell.axes == {"dataset": "digits", "method": "fedprox", "flfa": "lowest"}
    assert (cell.nodes, cell.seed) == (6, 1)


def test_more_seeds_than_in_the_file(tmp_path: Path) -> None:
    file = read_grid(written(tmp_path, GOOD), [7, 0])
    assert file.spec.seeds == [0, 1, 7]
    assert len(file.cells) == 12


def test_first_the_file_then_the_keys_then_the_value(tmp_path: Path) -> None:
    """``batch-size`` only in the file, epochs also in keys, rate in all three."""
    written(
        tmp_path,
        "batch-size = 3\nlocal-epochs = 3\nlearning-rate = 0.3",
        "data/small.toml",
    )
    text = """
title = "t"
nodes = 2
seeds = [0]
[keys]
local-epochs = 2
learning-rate = 0.2
[axes.dataset.small]
file = "../data/small.toml"
learning-rate = 0.1
"""
    (cell,) = read_grid(written(tmp_path, text, "grids/g.toml")).cells
    keys = ("batch-size", "local-epochs", "learning-rate")
    assert [cell.run_config[key] for key in keys] == [3, 2, 0.1]


def test_an_axis_may_set_the_nodes(tmp_path: Path) -> None:
    text = GOOD + '[axes.scale.many]\nnodes = 9\n[axes.scale.few]\nfeedback = "random"'
    cells = read_grid(written(tmp_path, text)).cells
    assert {cell.axes["scale"]: cell.nodes for cell in cells} == {"many": 9, "few": 6}


def test_what_is_excluded_is_no_cell(tmp_path: Path) -> None:
    rule = '[[exclude]]\nmethod = "fedprox"\nflfa = "lowest"'
    cells = read_grid(written(tmp_path, f"{GOOD}{rule}")).cells
    assert len(cells) == 6
    at = [(cell.axes["method"], cell.axes["flfa"]) for cell in cells]
    assert ("fedprox", "lowest") not in at


def test_names_that_say_the_same_are_told_apart(tmp_path: Path) -> None:
    """``a-b`` with ``c`` and ``a`` with ``b-c`` are both ``a-b-c``."""
    text = """
title = "t"
nodes = 2
seeds = [0]
columns = "x"
[axes.x.a]
local-epochs = 1
[axes.x.a-b]
local-epochs = 2
[axes.y.c]
[axes.y.b-c]
"""
    names = [cell.id for cell in read_grid(written(tmp_path, text)).cells]
    assert len(set(names)) == 4
    assert {name for name in names if len(name) < 12} == {"a-c-s0", "a-b-b-c-s0"}
    assert sum(name.startswith("a-b-c-s0-") for name in names) == 2


def test_a_cell_keeps_its_name_when_the_data_move(tmp_path: Path) -> None:
    text = """
title = "t"
nodes = 2
seeds = [0]
columns = "x"
[keys]
data-dir = "%s"
[axes.x.a]
[axes.x.a-b]
[axes.y.c]
[axes.y.b-c]
"""
    here, there = (
        [cell.id for cell in read_grid(written(tmp_path, text % folder)).cells]
        for folder in ("/here", "/there")
    )
    assert here == there


@pytest.mark.parametrize(
    ("given", "meant"), [("data", "{here}/data"), ("~/data", "{home}/data"), ("", "")]
)
def test_a_path_is_what_the_run_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    """Relative to where the command is called, as --run-config's are."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("num-server-rounds = 2", f'data-dir = "{given}"')
    cell = read_grid(written(tmp_path / "grids", text)).cells[0]
    expected = meant.format(here=tmp_path, home=tmp_path / "home")
    assert cell.run_config["data-dir"] == expected


def test_every_number_of_a_summary_is_a_metric(tmp_path: Path) -> None:
    """The rest of summary.json is no number: why a run has stopped early."""
    run = run_app(tmp_path, {"num-server-rounds": 1})
    summary = json.loads((run / "summary.json").read_text())
    numbers = {key for key, spec in METRICS.items() if spec.is_number}
    assert numbers == set(summary) - {"stopped-early"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("nodes = 6", "nodes = 0", "nodes is 0; it must be 1 or more"),
        ("nodes = 6", "", "nodes is missing"),
        ("seeds = [0, 1]", "seeds = []", r"seeds is \[\]"),
        ("seeds = [0, 1]", "seeds = [1, 1]", r"seeds is \[1, 1\]"),
        ("seeds = [0, 1]", "seeds = [true]", r"seeds is \[True\]"),
        ('title = "Two methods"', "", "title is None; it must be a text"),
        ("nodes = 6", "node = 6", "node is not a key; there are title"),
        ("nodes = 6", 'nodes = 6\ncolumns = "model"', "columns is 'model'"),
        ("nodes = 6", 'nodes = 6\ncolumns = ["a"]', r"columns is \['a'\]; it must be"),
        ("nodes = 6", 'nodes = 6\ntable = "tabel1"', "table is 'tabel1'; .* table1, "),
        ("nodes = 6", 'nodes = 6\nmetric = "scroe"', "metric is 'scroe'; .* score, "),
        ("nodes = 6", 'nodes = 6\nmetric = ["auc"]', r"metric is \['auc'\]; it must"),
        (
            "fedprox-mu = 0.5",
            "fedprox-nu = 1",
            "axes.method.fedprox: fedprox-nu is not",
        ),
        (
            "fedprox-mu = 0.5",
            "fedprox-mu = -1",
            "axes.method.fedprox: fedprox-mu is -1",
        ),
        (
            "num-server-rounds = 2",
            "num-server-rounds = 0",
            "keys: num-server-rounds is 0",
        ),
        ("num-server-rounds = 2", "seed = 2", "keys: seed cannot be set; list it"),
        ("num-server-rounds = 2", 'output-dir = "x"', "output-dir cannot be .* --out"),
        ("[axes.method.fedavg]", '[axes.method."a/b"]', "axes.method.a/b: a name has"),
        (
            "[axes.method.fedavg]",
            "[axes.rule]\n[axes.method.a]",
            "axes.rule has no val",
        ),
        ("[axes.method.fedavg]", "[axes.seed.a]\n[axes.method.a]", "axes.seed: seeds"),
        (
            "[axes.method.fedavg]",
            '[axes.method.a]\nfile = "no.toml"',
            "there is no file",
        ),
        ("[axes.method.fedavg]", "[axes.method.a]\nnodes = 1.5", "a.nodes is 1.5"),
        (
            'flfa = "none"',
            'algorithm = "moon"',
            "algorithm is 'fedprox' in axes.method",
        ),
        ("nodes = 6", "nodes = ", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in GOOD
    file = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=problem) as error:
        read_grid(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ('colour = "red"', "exclude: colour is not an axis"),
        ('method = "moon"', "exclude: 'moon' is not a value of method; there are fed"),
        ('method = ["fedprox"]', r"exclude: \['fedprox'\] is not a value of method"),
        ('dataset = "digits"', "exclude leaves no cell"),
        ("", "exclude: an empty table would drop every cell"),
    ],
)
def test_rules_that_make_no_sense(tmp_path: Path, rule: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_grid(written(tmp_path, f"{GOOD}[[exclude]]\n{rule}"))


def test_all_problems_at_once_and_each_of_them_once(tmp_path: Path) -> None:
    text = GOOD.replace("nodes = 6", "nodes = -1").replace("fedprox-mu", "fedprx-mu")
    with pytest.raises(ConfigError) as error:
        read_grid(written(tmp_path, text))
    assert len(str(error.value).splitlines()) == 3
    # One for each run config that would be wrong is one for all of them.
    text = GOOD.replace("num-server-rounds = 2", 'dataset = "digit"\nnorm = "no"')
    with pytest.raises(ConfigError) as error:
        read_grid(written(tmp_path, text))
    assert str(error.value).count("norm is 'no'") == 1


def test_contradictions_between_keys_are_found_before_anything_runs(
    tmp_path: Path,
) -> None:
    text = GOOD.replace("[axes.flfa.lowest]", '[axes.flfa.fixed]\nflfa = "fixed"')
    with pytest.raises(ConfigError, match="fixed-fa-layers is empty, but flfa is"):
        read_grid(written(tmp_path, text))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_grid(tmp_path / "no.toml")


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "configs" / "grids").glob("*.toml")),
    ids=lambda file: file.stem,
)
def test_the_grids_of_this_project(file: Path) -> None:
    """Each can be used; one of the paper's tables bears the name of its numbers.

    And it has the paper's settings, which its run configs were written from.
    """
    read = read_grid(file)
    grid = read.spec
    assert grid.table in ("", file.stem)
    assert not grid.table or grid.table in paper_tables()
    if grid.table:
        assert [differing_keys(grid.table, cell) for cell in read.cells] == [
            [] for _ in read.cells
        ]


def test_table_1_is_the_papers_main_table() -> None:
    """8 methods x with and without FLFA x 6 data sets x 3 seeds; rounds as it says."""
    cells = read_grid(ROOT / "configs" / "grids" / "table1.toml").cells
    assert len(cells) == 288
    rounds = {c.axes["dataset"]: c.run_config["num-server-rounds"] for c in cells}
    assert rounds.pop("cifar10") == 500
    assert set(rounds.values()) == {100}
    assert {(c.nodes, c.run_config["local-epochs"]) for c in cells} == {(100, 5)}
