"""The data sets that the run config can name.

Each module declares its data sets in ``SOURCES``.
"""

from __future__ import annotations

from importlib import import_module

from flfa_app.data.declaration import DatasetSource

_MODULES = (
    "digits",
    "medmnist",
    "fashion_mnist",
    "cifar",
    "imagenet",
    "files",
)

DATASETS: dict[str, DatasetSource] = {
    source.name: source
    for module in _MODULES
    for source in import_module(f"{__name__}.{module}").SOURCES
}
