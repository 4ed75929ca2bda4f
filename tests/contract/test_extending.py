"""CONTRIBUTING.md is right: its files are all that an addition touches.

Each test copies the project, writes the files that the guide names, and runs it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.federation import ROOT

GENERATED = {"pyproject.toml", "docs/configuration.md"}
COPIED = ("flfa_app", "strategies", "clients", "tests", "docs", "pyproject.toml")


def files_to_change(heading: str, name: str) -> list[str]:
    """The files of the numbered list under a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    files = re.findall(r"^\d\. `([^`]+)`", section, re.MULTILINE)
    return [file.replace("<name>", name) for file in files]


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.suffix in (".py", ".toml", ".md", ".html") and "runs" not in path.parts
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project."""
    ignored = shutil.ignore_patterns("__pycache__", "*.png", "e2e", "browser")
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    return tmp_path


def run_python(project: Path, code: str) -> Any:
    """Run code in the copy of the project; return what it prints, read as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def extend(project: Path, heading: str, name: str, changes: list[Any]) -> set[str]:
    """Change the files under a heading, in its order; return all files that differ.

    A change is a text for a new file, or the line to add and the line it follows.
    """
    before = contents(project)
    for file, change in zip(files_to_change(heading, name), changes, strict=True):
        path = project / file
        if isinstance(change, str):
            assert not path.exists()
            path.write_text(dedent(change), "utf-8")
            continue
        text = path.read_text("utf-8")
        for line, after in change:
            assert text.count(after) == 1, after
            text = text.replace(after, f"{after}{line}")
        path.write_text(text, "utf-8")
    run_python(project, "from flfa_app.config import docs; docs.main()")
    after = contents(project)
    return {file for file in after if after[file] != before.get(file)}


RUN = """
import json, sys
from pathlib import Path
from tests.federation import run_app

KEYS = {"num-server-rounds": 2, "pictures": False, "fraction-train": 1.0}
def run(**keys):
    keys = {key.replace("_", "-"): value for key, value in keys.items()}
    folder = Path("runs")
    folder.mkdir(exist_ok=True)
    results = run_app(folder, KEYS | keys, nodes=2)
    read = lambda name: json.loads((results / name).read_text())
    rounds = (results / "metrics.jsonl").read_text().splitlines()
    model = (results / "model.safetensors").read_bytes().hex()
    config, summary = read("config.json")["run-config"], read("summary.json")
    return config, summary, [json.loads(line) for line in rounds], model
"""

STRATEGY = '''
    """A toy: the server goes a part of the way, the clients shrink the gradient."""

    from __future__ import annotations

    from collections.abc import Sequence
    from typing import Any

    from ..options import Number, Option
    from ..selection import LayerSelection
    from .base import Arrays, FedMethod, Reply

    __all__ = ["FLFAFedToy", "FedToy"]


    class FedToy(FedMethod):
        """Move by ``step`` times the change of the mean."""

        display_name = "FedToy"
        step = Option("fedtoy-step", 0.5, Number(above=0, most=1), "step", fedavg=1.0)
        shrink = Option(
            "fedtoy-shrink",
            0.5,
            Number(least=0),
            "factor on the gradient",
            fedavg=1.0,
            to_clients=True,
        )

        def __init__(
            self,
            *,
            step: float = step.default,
            shrink: float = shrink.default,
            **method: Any,
        ) -> None:
            super().__init__(**method)
            self.step = step
            self.shrink = shrink

        def server_step(
            self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
        ) -> Arrays:
            """Return the parameters after a part of the way."""
            if self.step == 1:
                return {}
            return {k: sent[k] + self.step * (mean[k] - sent[k]) for k in mean}


    class FLFAFedToy(LayerSelection, FedToy):
        """:class:`FedToy` with FLFA."""
'''
TRAINER = '''
    """A toy: shrink the gradient."""

    from __future__ import annotations

    from ..trainer import LocalTrainer

    __all__ = ["FedToyTrainer"]


    class FedToyTrainer(LocalTrainer):
        """Multiply the gradient by the factor that the server sends."""

        def edit_gradients(self) -> None:
            """Shrink the gradient of every parameter."""
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= self.number("fedtoy-shrink")
'''
LINES = [
    (
        '    "fedtoy": Method(FLFAFedToy, "clients.methods.fedtoy:FedToyTrainer"),\n',
        "ALGORITHMS: dict[str, Method] = {\n",
    ),
    (
        "from strategies.methods.fedtoy import FLFAFedToy\n",
        "from strategies.methods.fedsol import FLFAFedSOL\n",
    ),
]


def test_a_method(project: Path) -> None:
    """Two sides and a line: it runs, has checked options, docs and a label."""
    changed = extend(project, "Add a method", "fedtoy", [STRATEGY, TRAINER, LINES])
    assert changed == {*files_to_change("Add a method", "fedtoy"), *GENERATED}
    result = run_python(
        project,
        RUN
        + """
from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from flfa_app.experiments.analysis.row_layout import display_name
from tests.federation import default_keys

*_, fedavg = run()
config, _, rounds, toy = run(algorithm="fedtoy")
*_, neutral = run(algorithm="fedtoy", **ALGORITHMS["fedtoy"].fedavg_keys)
*_, server_only = run(algorithm="fedtoy", fedtoy_shrink=1.0)
try:
    RunConfig.parse(default_keys() | {"fedtoy-step": 2})
except ConfigError as problem:
    problems = problem.problems
json.dump(
    {
        "config": config,
        "selected": [len(line["selected"]) for line in rounds],
        "models": [fedavg == neutral, fedavg == toy, toy == server_only],
        "problems": problems,
        "label": display_name("fedtoy"),
    },
    sys.stdout,
)
""",
    )
    assert result["config"]["fedtoy-step"] == 0.5
    assert result["selected"] == [0, 1]
    assert result["models"] == [True, False, False]
    problem = "fedtoy-step is 2; it must be a number above 0 to 1"
    assert result["problems"] == [problem]
    assert result["label"] == "FedToy"
    page = (project / "docs" / "configuration.md").read_text("utf-8")
    assert "| `fedtoy-step` | `0.5` | a number above 0 to 1 | step |" in page
    assert (
        "FedToy is FedAvg with `fedtoy-step = 1.0` and `fedtoy-shrink = 1.0`." in page
    )


METRIC = [
    (
        """
        MetricSpec(
            "confidence",
            "Mean probability of the predicted class",
            measure=lambda predictions: float(predictions.probabilities.max(1).mean()),
            percent=True,
        ),""",
        "    for spec in (",
    )
]


def test_a_metric(project: Path) -> None:
    """One declaration: it is measured, summarised, and shown in a grid's table."""
    changed = extend(project, "Add a metric", "confidence", [METRIC])
    assert changed == set(files_to_change("Add a metric", "confidence"))
    result = run_python(
        project,
        RUN
        + """
from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.store import Cell, GridResults
from tests.results_folder import make_grid

_, summary, rounds, _ = run()
axes = {"dataset": {"digits": {}}, "flfa": {"lowest": {}}}
made = make_grid(Path("grid"), axes, seeds=(0,), metric="confidence")
(cell,) = made.cells
(folder,) = Path("runs").iterdir()
config = json.loads((folder / "config.json").read_text())["run-config"]
cell = Cell(cell.id, cell.axes, 0, 2, config)
results = GridResults(made.folder, made.spec, [cell])
folder.rename(results.run_directory(cell))
json.dump(
    {
        "summary": summary["confidence"],
        "rounds": [line["confidence"] for line in rounds],
        "tables": render_tables(results, "markdown"),
    },
    sys.stdout,
)
""",
    )
    # The last 10 % of two rounds is the last round.
    assert result["summary"] == result["rounds"][-1]
    assert 0.1 < result["summary"] < 1
    assert "\n## Mean probability of the predicted class, in %" in result["tables"]
    assert f"{100 * result['summary']:.2f}" in result["tables"]


SOURCE = '''
    """A toy: images with bright columns on the left or on the right."""

    from __future__ import annotations

    import numpy as np

    from flfa_app.data.declaration import DatasetReader, DatasetSource, RawDataset

    __all__ = ["SOURCES"]


    class Stripes(DatasetSource):
        """Images of 8x8 pixels, made when they are read."""

        def find(self, data_dir: str, image_size: int) -> DatasetReader:
            """Return the function that makes the images."""
            return DatasetReader("stripes", "report the bug", _read)


    def _read() -> RawDataset:
        labels = np.arange(200) % 2
        images = np.random.default_rng(0).integers(0, 60, (200, 8, 8), np.uint8)
        images[labels == 0, :, :4] += 180
        images[labels == 1, :, 4:] += 180
        train, test = slice(0, 160), slice(160, 200)
        return RawDataset(
            images[train], labels[train], images[test], labels[test], ("left", "right")
        )


    SOURCES = (
        Stripes(
            name="stripes",
            display_name="Stripes",
            train_images=160,
            test_images=40,
            image_size=8,
            channels=1,
            classes=2,
        ),
    )
'''


def test_a_data_set(project: Path) -> None:
    """A module and its name: a run can learn it, docs and tables know it."""
    lines = [('    "stripes",\n', '    "imagenet",\n')]
    changed = extend(project, "Add a data set", "stripes", [SOURCE, lines])
    # pyproject.toml does not list the data sets: there are too many for a comment.
    files = files_to_change("Add a data set", "stripes")
    assert changed == {*files, "docs/configuration.md"}
    result = run_python(
        project,
        RUN
        + """
from flfa_app.experiments.analysis.row_layout import display_name

_, summary, *_ = run(dataset="stripes", partitioner="iid", num_server_rounds=3)
json.dump({"score": summary["score"], "label": display_name("stripes")}, sys.stdout)
""",
    )
    assert result["label"] == "Stripes"
    assert result["score"] > 0.9  # half of it would be chance
    page = (project / "docs" / "configuration.md").read_text("utf-8")
    assert "`stripes`" in page


PLOT = '''
    """A toy: the number of participants by round."""

    from collections.abc import Sequence
    from pathlib import Path

    from flfa_app.results.plots.figure import new_figure, save
    from flfa_app.results.records import RoundRecord


    def plot_toy(records: Sequence[RoundRecord], path: Path, *, title: str) -> None:
        """Draw the number of participants."""
        figure = new_figure(4, 3, title)
        figure.subplots().plot([len(record.participants) for record in records])
        save(figure, path)
'''


def test_a_plot(project: Path) -> None:
    """A module, its export and a call: each run has the picture."""
    export = [
        (
            "from flfa_app.results.plots.toy import plot_toy\n",
            "from flfa_app.results.plots.scores import plot_scores\n",
        ),
        (', "plot_toy"', '"plot_scores"'),
    ]
    line = 'plots.plot_toy(self.records, self.path / "toy.png", title=title)\n'
    call = [(" " * 8 + line, '        title = ", ".join(run)\n')]
    changed = extend(project, "Add a plot", "toy", [PLOT, export, call])
    assert changed == set(files_to_change("Add a plot", "toy"))
    run_python(project, RUN + "run(pictures=True, num_server_rounds=1)")
    (picture,) = (project / "runs").glob("*/toy.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
