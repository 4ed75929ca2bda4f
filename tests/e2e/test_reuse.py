"""The wheel in another environment and app whose packages have the same names.

The environment, its interpreter and the installed wheel are new, which the tests check.
The dependencies, several gigabytes, come from the environment of the tests.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest

from flfa_app.launch.processes import (
    find_processes,
    flower_environment,
    free_port,
    stop_processes,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reuse"
NODES = 4
TIMEOUT = 300

pytestmark = pytest.mark.e2e

# The same names as ours, at the top level, with something else behind them.
RIVAL = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "rival"
        version = "3.0"
        [tool.hatch.build.targets.wheel]
        packages = ["strategies", "clients"]
    """,
    "strategies/__init__.py": "LayerSelection = sorted\n",
    "clients/__init__.py": "feedback_alignment = sum\n",
}

# Uses all four packages in one process, and tells where they are from.
TOGETHER = """
import json
import clients, strategies
import flfa.clients, flfa.strategies

assert strategies.LayerSelection([2, 1]) == [1, 2]
assert clients.feedback_alignment([2, 1]) == 3

import torch
ours = flfa.strategies.LayerSelection(layers=["0"], rule="fixed", fixed_layers=["0"])
model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
inputs = torch.ones(1, 1, requires_grad=True)
torch.nn.init.constant_(model[0].weight, 2.0)
with flfa.clients.feedback_alignment(model, ours.selected, scaling="none"):
    torch.nn.init.constant_(model[0].weight, 5.0)
    model(inputs).backward()
assert inputs.grad.item() == 2.0  # through the weight on entry, not 5

modules = (clients, strategies, flfa.clients, flfa.strategies)
print(json.dumps({module.__name__: module.__file__ for module in modules}))
"""

# Looks them up without importing torch and Flower.
FOUND = """
import json
from importlib.util import find_spec
names = ("clients", "strategies", "flfa.clients", "flfa.strategies")
found = {name: find_spec(name) for name in names}
print(json.dumps({name: spec and spec.origin for name, spec in found.items()}))
"""


def run(command, **kwargs):
    """Run a command; return its output, and show it if it has failed."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            **kwargs,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{command} takes more than {TIMEOUT} s:\n{late.stdout}")
    assert done.returncode == 0, f"{command} exits {done.returncode}:\n{done.stdout}"
    return done.stdout


def build_wheel(project, folder):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    run([*command, "--outdir", folder, project], cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_rival(folder):
    for name, text in RIVAL.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Environment:
    """A virtual environment of its own, with borrowed dependencies."""

    def __init__(self, folder):
        run([sys.executable, "-m", "venv", folder])
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.site_packages = Path(self.execute(where).strip())
        # Where venv installs setuptools it is too old for the borrowed torch.
        self.pip("uninstall", "--yes", "setuptools")
        # Later on the path than the environment's own packages, and without the .pth
        # files there: an editable installation of this project is not borrowed.
        borrowed = [
            p for p in sys.path if p.endswith(("site-packages", "dist-packages"))
        ]
        (self.site_packages / "borrowed.pth").write_text("\n".join(borrowed))
        for script in distribution("flwr").entry_points.select(group="console_scripts"):
            file = self.bin / script.name
            file.write_text(
                f"#!{self.python}\nimport sys\nfrom {script.module} import "
                f"{script.attr}\nsys.exit({script.attr}())\n"
            )
            file.chmod(0o755)

    def execute(self, code):
        """Run Python code there, out of reach of this checkout."""
        return run([self.python, "-I", "-W", "ignore", "-c", code], cwd=self.bin)

    def pip(self, *args):
        pip = [self.python, "-I", "-m", "pip", "--isolated"]
        return run([*pip, "--disable-pip-version-check", *args], cwd=self.bin)

    def install(self, *wheels):
        # Without --force-reinstall pip would be content with a borrowed installation
        # of the same version.
        for wheel in wheels:
            self.pip("install", "--no-index", "--no-deps", "--force-reinstall", wheel)
        # Whatever the wheels depend on is there, or pip would look for it in vain.
        self.pip("install", "--no-index", "flfa", "rival")

    def own(self, *parts):
        return str(self.site_packages.joinpath(*parts, "__init__.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def rival(tmp_path_factory):
    project = tmp_path_factory.mktemp("rival")
    write_rival(project)
    return build_wheel(project, tmp_path_factory.mktemp("rival-wheel"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("environment").resolve())


def test_the_wheel_holds_the_two_libraries(wheel):
    expected = {
        Path("flfa", path.relative_to(ROOT)).as_posix()
        for folder in ("strategies", "clients")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - info == expected
    assert {"flfa/strategies/py.typed", "flfa/clients/py.typed"} <= expected
    assert {name.split("/")[1] for name in info} >= {"METADATA", "RECORD", "licenses"}


@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_packages_of_the_same_names(environment, wheel, rival, ours_first):
    everything = {
        "clients": environment.own("clients"),
        "strategies": environment.own("strategies"),
        "flfa.clients": environment.own("flfa", "clients"),
        "flfa.strategies": environment.own("flfa", "strategies"),
    }
    environment.install(*([wheel, rival] if ours_first else [rival, wheel]))
    assert json.loads(environment.execute(TOGETHER)) == everything

    # Removing one leaves the other as it was.
    if ours_first:
        environment.pip("uninstall", "--yes", "rival")
        left = {**everything, "clients": None, "strategies": None}
        assert json.loads(environment.execute(FOUND)) == left
    else:
        environment.pip("uninstall", "--yes", "flfa")
        found = json.loads(environment.execute(FOUND))
        assert found["strategies"] == everything["strategies"]
        assert found["flfa.strategies"] != everything["flfa.strategies"]


def test_in_somebody_elses_app(environment, wheel, rival, tmp_path):
    environment.install(wheel, rival)
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    result_file = tmp_path / "result.json"
    # Simulated clients look for modules where Flower was started before they look into
    # the app: rivals are there as well.
    folder = tmp_path / "folder"
    write_rival(folder)
    federation = f"num-supernodes={NODES} client-resources-num-cpus=1"
    with flower(environment, tmp_path / "flower") as variables:

        def flwr(*args):
            return run([environment.bin / "flwr", *args], env=variables, cwd=folder)

        log = flwr(
            *("run", app, "--stream", "--federation-config", federation),
            *("--run-config", f"result-file='{result_file}'"),
        )
        listing = flwr("list", "--format", "json")
        runs = json.loads(listing[listing.index("{") :])["runs"]
    assert [r["status"] for r in runs] == ["finished:completed"], log
    result = json.loads(result_file.read_text())

    # It has learnt: about 0.9 is expected; chance is 0.1, after one round it is 0.4.
    assert result["accuracy"][0] < 0.3
    assert result["accuracy"][-1] > 0.7, log

    # Round 1 has nothing to go by. Then one layer a round, on all clients.
    rounds = len(result["accuracy"]) - 1
    assert rounds >= 3
    assert [len(names) for names in result["selected"]] == [0] + [1] * (rounds - 1)
    assert result["aligned-layers"] == [0.0] + [1.0] * (rounds - 1)
    assert {n for names in result["selected"] for n in names} <= {*result["candidates"]}
    assert result["candidates"] == [
        "encoder.layers.0.linear1",
        "encoder.layers.0.linear2",
        "encoder.layers.1.linear1",
        "encoder.layers.1.linear2",
        "head",
    ]

    # In the app `strategies` is its own, though the rival's is installed.
    rivals = json.loads(environment.execute(FOUND))["strategies"]
    assert rivals == environment.own("strategies")
    modules = result["modules"]
    own = Path(modules.pop("strategies"))
    assert own.is_relative_to(tmp_path / "flower" / "apps")
    assert own.parts[-2:] == ("strategies", "__init__.py")
    assert modules == {
        "flfa.strategies": environment.own("flfa", "strategies"),
        "flfa.clients": environment.own("flfa", "clients"),
    }


@contextmanager
def flower(environment, home):
    """Yield the variables of a ``flwr`` with a SuperLink of its own; stop it later."""
    home.mkdir()
    variables = {
        **flower_environment(home),
        "PATH": f"{environment.bin}{os.pathsep}{os.environ['PATH']}",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        variables.pop(name, None)
    try:
        yield variables
    finally:
        stop_processes(home)
    assert find_processes(home) == set()
