"""Grid files: their cells, and the problems of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.paper import differing_keys
from flfa_app.experiments.grid import read_grid
from flfa_app.experiments.store import Cell
from tests.federation import ROOT, default_keys

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
# The combinations a-b, c and a, b-c would both have the id a-b-c.
AMBIGUOUS = """
title = "Ambiguous names"
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


def write_file(folder: Path, text: str, name: str = "grid.toml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def read_cells(folder: Path, text: str) -> list[Cell]:
    return read_grid(write_file(folder, text)).cells


def test_every_combination_is_a_cell(tmp_path: Path) -> None:
    """1 data set x 2 methods x 2 rules x 3 seeds; the last axis changes fastest."""
    spec, cells = read_grid(write_file(tmp_path, GOOD), [7, 0])
    assert [cell.id for cell in cells] == [
        f"digits-{method}-{rule}-s{seed}"
        for method in ("fedavg", "fedprox")
        for rule in ("none", "lowest")
        for seed in (0, 1, 7)
    ]
    methods, rules = ["fedavg", "fedprox"], ["none", "lowest"]
    assert spec.axes == {"dataset": ["digits"], "method": methods, "flfa": rules}
    assert (spec.metric, spec.table) == ("score", "")
    assert (spec.columns, spec.seeds) == ("dataset", [0, 1, 7])
    # A cell has the complete run config.
    expected = default_keys() | {"num-server-rounds": 2, "seed": 7}
    expected |= {"algorithm": "fedprox", "fedprox-mu": 0.5}
    del expected["output-dir"]
    cell = cells[-1]
    assert cell.run_config == expected
    assert cell.axes == {"dataset": "digits", "method": "fedprox", "flfa": "lowest"}
    assert (cell.nodes, cell.seed) == (6, 7)


def test_precedence_of_keys(tmp_path: Path) -> None:
    """A value's own keys override the grid's, which override those of its file."""
    content = "batch-size = 3\nlocal-epochs = 3\nlearning-rate = 0.3"
    write_file(tmp_path, content, "data/small.toml")
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
    (cell,) = read_cells(tmp_path / "grids", text)
    keys = ("batch-size", "local-epochs", "learning-rate")
    assert [cell.run_config[key] for key in keys] == [3, 2, 0.1]


def test_an_axis_may_set_the_nodes(tmp_path: Path) -> None:
    text = GOOD + '[axes.scale.many]\nnodes = 9\n[axes.scale.few]\nfeedback = "random"'
    cells = read_cells(tmp_path, text)
    assert {cell.axes["scale"]: cell.nodes for cell in cells} == {"many": 9, "few": 6}


def test_excluded_combinations(tmp_path: Path) -> None:
    rule = '[[exclude]]\nmethod = "fedprox"\nflfa = "lowest"'
    cells = read_cells(tmp_path, GOOD + rule)
    assert len(cells) == 6
    combinations = [(cell.axes["method"], cell.axes["flfa"]) for cell in cells]
    assert ("fedprox", "lowest") not in combinations


def test_ids_are_unique_and_do_not_depend_on_paths(tmp_path: Path) -> None:
    ids, moved = (
        [cell.id for cell in read_cells(tmp_path, AMBIGUOUS % folder)]
        for folder in ("/here", "/there")
    )
    assert len(set(ids)) == 4
    assert {cell_id for cell_id in ids if len(cell_id) < 12} == {"a-c-s0", "a-b-b-c-s0"}
    assert sum(cell_id.startswith("a-b-c-s0-") for cell_id in ids) == 2
    assert moved == ids


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working directory, as in --run-config."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    absolute = {"data": str(tmp_path / "data"), "~/data": str(home / "data"), "": ""}
    for path, expected in absolute.items():
        text = GOOD.replace("num-server-rounds = 2", f'data-dir = "{path}"')
        cell = read_cells(tmp_path / "grids", text)[0]
        assert cell.run_config["data-dir"] == expected


NODES, MU, NONE = "nodes = 6", "fedprox-mu = 0.5", 'flfa = "none"'
SEEDS, ROUNDS = "seeds = [0, 1]", "num-server-rounds = 2"
VALUE, LAST = "[axes.method.fedavg]", "[axes.flfa.lowest]\n"
FIXED, EXCLUDE = '[axes.flfa.f]\nflfa = "fixed"', "[axes.flfa.a]\n[[exclude]]\n"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (NODES, "nodes = 0", "nodes is 0; it must be 1 or more"),
        (NODES, "", "nodes is missing"),
        (SEEDS, "seeds = []", r"seeds is \[\]"),
        (SEEDS, "seeds = [1, 1]", r"seeds is \[1, 1\]"),
        (SEEDS, "seeds = [true]", r"seeds is \[True\]"),
        ('title = "Two methods"', "", "title is None; it must be a text"),
        (NODES, "node = 6", "node is not a key; there are title"),
        (NODES, 'nodes = 6\ncolumns = "model"', "columns is 'model'; .* an axis: data"),
        (NODES, 'nodes = 6\ncolumns = ["a"]', r"columns is \['a'\]; it must be"),
        (NODES, 'nodes = 6\ntable = "tabel1"', "table is 'tabel1'; .* table1, "),
        (NODES, 'nodes = 6\nmetric = "scroe"', "metric is 'scroe'; .* score, "),
        (MU, "fedprox-nu = 1", "axes.method.fedprox: fedprox-nu is not a key of"),
        (MU, "fedprox-mu = -1", "axes.method.fedprox: fedprox-mu is -1"),
        (ROUNDS, "num-server-rounds = 0", "keys: num-server-rounds is 0"),
        (ROUNDS, "seed = 2", "keys: seed cannot be set; list it"),
        (ROUNDS, 'output-dir = "x"', "output-dir cannot be .* --out"),
        (VALUE, '[axes.method."a/b"]', "axes.method.a/b: a name has"),
        (VALUE, "[axes.rule]\n[axes.method.a]", "axes.rule has no values"),
        (VALUE, "[axes.seed.a]\n[axes.method.a]", "axes.seed: seeds are listed"),
        (VALUE, '[axes.method.a]\nfile = "no.toml"', "there is no file"),
        (VALUE, "[axes.method.a]\nnodes = 1.5", "a.nodes is 1.5"),
        (NONE, 'algorithm = "moon"', "algorithm is 'fedprox' in axes.meth"),
        (LAST, FIXED, "fixed-fa-layers is empty, but flfa is"),
        (LAST, EXCLUDE + 'colour = "red"', "exclude: colour is not an axis"),
        (LAST, EXCLUDE + 'method = "moon"', "'moon' is not a value of method; .* fed"),
        (LAST, EXCLUDE + 'method = ["x"]', r"exclude: \['x'\] is not a value of"),
        (LAST, EXCLUDE + 'dataset = "digits"', "exclude leaves no cell"),
        (LAST, EXCLUDE, "exclude: an empty table would drop every cell"),
        (NODES, "nodes = ", "cannot be read"),
    ],
)
def test_problems_are_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in GOOD
    file = write_file(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=problem) as error:
        read_grid(file)
    assert str(file) in str(error.value)


def test_all_problems_are_listed_once(tmp_path: Path) -> None:
    text = GOOD.replace("nodes = 6", "nodes = -1").replace("fedprox-mu", "fedprx-mu")
    with pytest.raises(ConfigError) as error:
        read_cells(tmp_path, text)
    assert len(error.value.problems) == 2
    # Every cell has this problem.
    text = GOOD.replace("num-server-rounds = 2", 'dataset = "digit"\nnorm = "no"')
    with pytest.raises(ConfigError) as error:
        read_cells(tmp_path, text)
    assert sum("norm is 'no'" in problem for problem in error.value.problems) == 1
    with pytest.raises(ConfigError, match="there is no file"):
        read_grid(tmp_path / "no.toml")


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "configs" / "grids").glob("*.toml")),
    ids=lambda file: file.stem,
)
def test_grids_of_this_project(file: Path) -> None:
    """A grid with the name of a table of the paper has the paper's settings."""
    spec, cells = read_grid(file)
    assert spec.table in ("", file.stem)
    if spec.table:
        assert all(differing_keys(spec.table, cell) == [] for cell in cells)


def test_table_1_is_the_main_table_of_the_paper() -> None:
    """8 methods with and without FLFA x 6 data sets x 3 seeds."""
    cells = read_grid(ROOT / "configs" / "grids" / "table1.toml").cells
    assert len(cells) == 288
    rounds = {c.axes["dataset"]: c.run_config["num-server-rounds"] for c in cells}
    assert rounds.pop("cifar10") == 500
    assert set(rounds.values()) == {100}
    assert {(c.nodes, c.run_config["local-epochs"]) for c in cells} == {(100, 5)}
