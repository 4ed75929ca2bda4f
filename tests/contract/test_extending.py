"""CONTRIBUTING.md is right: its files are all that an addition touches.

One copy of the project gets a toy of each kind, in the files that the guide names. Then
one process writes the generated files and runs the toys.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.federation import ROOT

COPIED = ("flfa_app", "strategies", "clients", "tests", "docs")
GENERATED = {"pyproject.toml", "docs/configuration.md"}

STRATEGY = '''
    """A toy: the server goes a part of the way, the clients shrink the gradient."""

    from __future__ import annotations

    from collections.abc import Sequence
    from typing import Any

    from ..options import Number, Option
    from ..selection import LayerSelection
    from .base import Arrays, FedMethod, Reply

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

        def __init__(self, *, step: float, shrink: float, **method: Any) -> None:
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

    class FedToyTrainer(LocalTrainer):
        """Multiply the gradient by the factor that the server sends."""

        def edit_gradients(self) -> None:
            """Shrink the gradient of every parameter."""
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= self.number("fedtoy-shrink")
'''
METHOD = {
    "ALGORITHMS: dict[str, Method] = {": """
    "fedtoy": Method(FLFAFedToy, "clients.methods.fedtoy:FedToyTrainer"),""",
    "from strategies.methods.fedsol import FLFAFedSOL": """
from strategies.methods.fedtoy import FLFAFedToy""",
}
METRIC = {
    "    for spec in (": """
        MetricSpec(
            "confidence",
            "Mean probability of the predicted class",
            measure=lambda predictions: float(predictions.probabilities.max(1).mean()),
            percent=True,
        ),""",
}
SOURCE = '''
    """A toy: images with bright columns on the left or on the right."""

    from __future__ import annotations

    import numpy as np

    from flfa_app.data.declaration import DatasetReader, DatasetSource, RawDataset

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
PLOT = {
    "from strategies.rules import skewness": """


def plot_toy(records: Sequence[RoundRecord], title: str) -> Figure:
    figure = new_figure(4, 3, title)
    figure.subplots().plot([len(record.participants) for record in records])
    return figure""",
    '    "progress.png": plot_progress,': """
    "toy.png": plot_toy,""",
}
# Name and changes under each heading of the guide, in the order of its files: the text
# of a new file, or what is added to a file after each of some texts.
ADDITIONS: dict[str, tuple[str, list[Any]]] = {
    "Add a method": ("fedtoy", [STRATEGY, TRAINER, METHOD]),
    "Add a metric": ("confidence", [METRIC]),
    "Add a data set": ("stripes", [SOURCE, {'"imagenet",': '\n    "stripes",'}]),
    "Add a plot": ("toy", [PLOT]),
}

RUN = """
import json, sys
from pathlib import Path
from docs import generate
from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.row_layout import display_name
from flfa_app.experiments.report.tables import render_tables
from flfa_app.experiments.store import Cell, GridResults
from flfa_app.methods import ALGORITHMS
from tests.federation import default_keys, run_app
from tests.results_folder import make_grid

def run(name, **keys):
    common = {"num-server-rounds": 2, "pictures": False, "fraction-train": 1.0}
    keys = {key.replace("_", "-"): value for key, value in keys.items()}
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    results = run_app(folder, common | keys, nodes=2)
    rounds = (results / "metrics.jsonl").read_text().splitlines()
    return {
        "config": json.loads((results / "config.json").read_text())["run-config"],
        "summary": json.loads((results / "summary.json").read_text()),
        "rounds": [json.loads(line) for line in rounds],
        "model": (results / "model.safetensors").read_bytes().hex(),
    }

generate.main()
try:
    RunConfig.parse(default_keys() | {"fedtoy-step": 2})
except ConfigError as problem:
    problems = problem.problems
result = {
    "fedavg": run("fedavg", pictures=True),
    "toy": run("toy", algorithm="fedtoy"),
    "neutral": run("neutral", algorithm="fedtoy", **ALGORITHMS["fedtoy"].fedavg_keys),
    "server-only": run("server", algorithm="fedtoy", fedtoy_shrink=1.0),
    "stripes": run("stripes", dataset="stripes", partitioner="iid"),
    "problems": problems,
    "labels": [display_name("fedtoy"), display_name("stripes")],
}
axes = {"dataset": {"digits": {}}, "flfa": {"lowest": {}}}
made = make_grid(Path("grid"), axes, seeds=(0,), metric="confidence")
cell = Cell(made.cells[0].id, made.cells[0].axes, 0, 2, result["fedavg"]["config"])
results = GridResults(made.folder, made.spec, [cell])
(folder,) = Path("runs", "fedavg").iterdir()
results.run_directory(cell).symlink_to(folder.resolve())
result["tables"] = render_tables(results, "markdown")
json.dump(result, sys.stdout)
"""


def files_to_change(heading: str, name: str) -> list[str]:
    """The files of the numbered list under a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    files = re.findall(r"^\d\. `([^`]+)`", section, re.MULTILINE)
    return [file.replace("<name>", name) for file in files]


def change(path: Path, changes: Any) -> None:
    if isinstance(changes, str):
        assert not path.exists()
        path.write_text(dedent(changes), "utf-8")
        return
    text = path.read_text("utf-8")
    for after, added in changes.items():
        assert text.count(after) == 1, after
        text = text.replace(after, after + added)
    path.write_text(text, "utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all additions."""
    folder = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns("__pycache__", "*.png", "e2e", "browser")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for heading, (name, changes) in ADDITIONS.items():
        files = files_to_change(heading, name)
        for file, changes_of_file in zip(files, changes, strict=True):
            change(folder / file, changes_of_file)
    return folder


@pytest.fixture(scope="module")
def result(project: Path) -> Any:
    """What one process prints that runs all toys."""
    command = [sys.executable, "-c", RUN]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, cwd=project, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_guide_names_every_file(project: Path, result: Any) -> None:
    """Everything else that differs is generated."""
    named = {file for x in ADDITIONS for file in files_to_change(x, ADDITIONS[x][0])}
    assert len(named) == 7
    files = [folder.rglob("*") for folder in map(project.joinpath, COPIED)]
    changed = set()
    for path in (project / "pyproject.toml", *chain.from_iterable(files)):
        original = ROOT / path.relative_to(project)
        if path.suffix in (".py", ".toml", ".md", ".html") and not (
            original.exists() and path.read_bytes() == original.read_bytes()
        ):
            changed.add(str(path.relative_to(project)))
    assert changed == named | GENERATED


def test_a_method(project: Path, result: Any) -> None:
    """Two sides and a line: it runs, has checked options, docs and a label."""
    toy = result["toy"]
    assert toy["config"]["fedtoy-step"] == 0.5
    assert [len(line["selected"]) for line in toy["rounds"]] == [0, 1]
    assert result["neutral"]["model"] == result["fedavg"]["model"] != toy["model"]
    assert toy["model"] != result["server-only"]["model"]
    problem = "fedtoy-step is 2; it must be a number above 0 to 1"
    assert result["problems"] == [problem]
    assert result["labels"][0] == "FedToy"
    page = (project / "docs" / "configuration.md").read_text("utf-8")
    assert "| `fedtoy-step` | `0.5` | a number above 0 to 1 | step |" in page
    neutral = "FedAvg with `fedtoy-step = 1.0` and `fedtoy-shrink = 1.0`."
    assert f"FedToy is {neutral}" in page
    assert "fedtoy-step = 0.5" in (project / "pyproject.toml").read_text("utf-8")


def test_a_metric(result: Any) -> None:
    """One declaration: it is measured, summarised, and shown in a grid's table."""
    run = result["fedavg"]
    # The last 10 % of two rounds is the last round.
    confidence = run["summary"]["confidence"]
    assert confidence == run["rounds"][-1]["confidence"]
    assert 0.1 < confidence < 1
    assert "\n## Mean probability of the predicted class, in %" in result["tables"]
    assert f"{100 * confidence:.2f}" in result["tables"]


def test_a_data_set(project: Path, result: Any) -> None:
    """A module and its name: a run can learn it, docs and tables know it."""
    assert result["labels"][1] == "Stripes"
    assert result["stripes"]["summary"]["score"] > 0.9  # half of it would be chance
    assert "`stripes`" in (project / "docs" / "configuration.md").read_text("utf-8")


def test_a_plot(project: Path, result: Any) -> None:
    """A function and its file: each run has the picture."""
    (picture,) = (project / "runs").glob("*/*/toy.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
