"""Every public name exists, is exported once, and says what it is."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import clients
import strategies

PACKAGES = [strategies, clients]
MODULES = [
    importlib.import_module(module.name)
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.ispkg
]
PUBLIC = {
    "strategies": {
        "FA_LAYERS",
        "FLFAFedAdam",
        "FLFAFedAvg",
        "FLFAFedAvgM",
        "LayerSelection",
        "layer_cosines",
        "local_drift",
    },
    "clients": {
        "LocalTrainer",
        "TrainSettings",
        "TrainingDivergedError",
        "aligned_layers",
        "effective_layers",
        "eligible_layers",
        "fast_depthwise",
        "feedback_alignment",
    },
}


def exported(modules):
    return [
        pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
        for module in modules
        for name in module.__all__
        if inspect.isclass(getattr(module, name))
        or inspect.isfunction(getattr(module, name))
    ]


@pytest.mark.parametrize("module", [*PACKAGES, *MODULES], ids=lambda m: m.__name__)
def test_all(module):
    names = module.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)
    assert not any(name.startswith("_") for name in names)
    namespace = {}
    exec(f"from {module.__name__} import *", namespace)
    assert set(names) <= set(namespace)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda m: m.__name__)
def test_the_public_names(package):
    assert set(package.__all__) >= PUBLIC[package.__name__]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_all_is_complete(module):
    """What a module defines without an underscore, it exports."""
    defined = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
    rules = set(module.RULES) if hasattr(module, "RULES") else set()
    assert defined - rules <= set(module.__all__)


@pytest.mark.parametrize("module", [*PACKAGES, *MODULES], ids=lambda m: m.__name__)
def test_modules_have_docstrings(module):
    assert (module.__doc__ or "").strip()


@pytest.mark.parametrize("thing", exported([*PACKAGES, *MODULES]))
def test_docstrings(thing):
    """Of the object itself, not inherited; of a class's own public methods too."""
    if inspect.isfunction(thing):
        assert (thing.__doc__ or "").strip()
        return
    assert (vars(thing).get("__doc__") or "").strip()
    for name, member in vars(thing).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            assert (member.__doc__ or "").strip(), name


@pytest.mark.parametrize("name", ["layers", "rule", "num_layers", "selection_seed"])
def test_the_parameters_of_layer_selection_are_documented(name):
    assert f"{name} :" in strategies.LayerSelection.__doc__
    assert name in inspect.signature(strategies.LayerSelection).parameters


@pytest.mark.parametrize("package", PACKAGES, ids=lambda m: m.__name__)
def test_is_typed(package):
    assert (Path(package.__file__).parent / "py.typed").is_file()
