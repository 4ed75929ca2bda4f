"""Decoded data sets and drawn partitions, shared by all processes of a machine.

A data set is a folder of ``.npy`` files, which every process maps into memory. It is
written under a temporary name and renamed, so no process sees an incomplete folder. A
partition is one ``.npz`` file: drawing it takes seconds, mostly for importing the
libraries that draw it, and every process of a run needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from io import BytesIO
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from flwr.common.logger import log
from numpy.typing import NDArray

from flfa_app.data.dataset import ImageDataset
from flfa_app.data.partition import Partition, partition_indices
from flfa_app.data.validation import DAMAGE_ERRORS
from flfa_app.files import flush_folder, write_atomically

CACHE_VARIABLE = "FLFA_CACHE"
# A change of the decoding gets a new number, which makes older entries unused.
DATASET_FORMAT = 3
PARTITION_FORMAT = 1
_METADATA_FILE = "about.json"
# Errors of reading a folder that is missing or incomplete.
_READ_ERRORS = (*DAMAGE_ERRORS, OSError, TypeError)


def cache_folder() -> Path:
    """Return the folder of this user's decoded data sets and partitions."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "flfa"


def cached_dataset(
    name: str,
    image_size: int,
    files: Iterable[Path],
    cache_key: str,
    decode: Callable[[], ImageDataset],
) -> ImageDataset:
    """Return a data set from the cache, after decoding it if it is not cached.

    A change of an argument, or of the size or modification time of a file, makes a new
    entry. One process calls ``decode``, the others wait. If the cache cannot be
    written, OSError is raised.
    """
    root = cache_folder()
    states = [
        [str(path.resolve()), status.st_size, status.st_mtime_ns]
        for path in sorted(files)
        for status in [path.stat()]
    ]
    text = json.dumps([DATASET_FORMAT, name, image_size, cache_key, states])
    folder = root / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with suppress(*_READ_ERRORS):
        # Before anything is written: the cache may be read-only.
        return _load(folder)
    with _write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock").acquire()
    with lock:
        if folder.exists():
            try:
                return _load(folder)
            except _READ_ERRORS as problem:
                log(WARNING, "%s is damaged and is made again: %s", folder, problem)
        log(INFO, "Decoding %s once, into %s", name, folder)
        dataset = decode()
        with _write_errors(root):
            _save(dataset, folder)
        return _load(folder)


def _save(dataset: ImageDataset, folder: Path) -> None:
    """Write a folder under a temporary name, flush it to the disk, and rename it."""
    partial = folder.with_name(folder.name + ".partial")
    # Left by a killed process: this one holds the lock.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    arrays: dict[str, NDArray[Any]] = {
        "train": dataset.train,
        "train-labels": dataset.train_labels,
        "test": dataset.test,
        "test-labels": dataset.test_labels,
    }
    # Numbers, because the names may not be valid as file names.
    for i, (images, labels) in enumerate(dataset.extra_tests.values()):
        arrays |= {f"extra-{i}": images, f"extra-{i}-labels": labels}
    for i, column in enumerate(dataset.columns.values()):
        arrays[f"column-{i}"] = column
    for name, array in arrays.items():
        with (partial / f"{name}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    metadata = {
        "class-names": dataset.class_names,
        "mean": dataset.mean,
        "deviation": dataset.deviation,
        "extra-tests": list(dataset.extra_tests),
        "columns": list(dataset.columns),
        "arrays": {name: _type_and_shape(array) for name, array in arrays.items()},
    }
    text = json.dumps(metadata, indent=1)
    write_atomically(partial / _METADATA_FILE, text.encode())  # flushes the folder too
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    flush_folder(folder.parent)


def _load(folder: Path) -> ImageDataset:
    metadata = json.loads((folder / _METADATA_FILE).read_text())

    def load(name: str, mmap_mode: Any = None) -> NDArray[Any]:
        file = folder / f"{name}.npy"
        array: NDArray[Any] = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
        if _type_and_shape(array) != metadata["arrays"][name]:
            raise ValueError(f"{file.name} is {_type_and_shape(array)}")
        return array

    return ImageDataset(
        train=load("train", "r"),
        train_labels=load("train-labels"),
        test=load("test", "r"),
        test_labels=load("test-labels"),
        class_names=tuple(metadata["class-names"]),
        mean=tuple(metadata["mean"]),
        deviation=tuple(metadata["deviation"]),
        extra_tests={
            name: (load(f"extra-{i}", "r"), load(f"extra-{i}-labels"))
            for i, name in enumerate(metadata["extra-tests"])
        },
        columns={
            name: load(f"column-{i}") for i, name in enumerate(metadata["columns"])
        },
    )


def _type_and_shape(array: NDArray[Any]) -> list[Any]:
    return [str(array.dtype), *array.shape]


@contextmanager
def _write_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise OSError(
            f"the decoded images cannot be written to {root}: {problem}; make the "
            "folder writable, free some space, or set the environment variable "
            f"{CACHE_VARIABLE} to another folder"
        ) from problem


def cached_partition(
    labels: NDArray[np.int64],
    num_partitions: int,
    *,
    owners: NDArray[Any] | None = None,
    **settings: Any,
) -> Partition:
    """Return a partition from the cache, after drawing it if it is not cached.

    The parameters are those of :func:`~.partition.partition_indices`. If the cache
    cannot be written, the partition is returned with a warning.
    """
    # Other versions of these may draw another partition.
    libraries = [version(name) for name in ("flwr-datasets", "datasets", "numpy")]
    text = json.dumps(
        [PARTITION_FORMAT, libraries, num_partitions, sorted(settings.items())]
    )
    key = hashlib.sha256(text.encode())
    key.update(labels.tobytes())
    if owners is not None:
        key.update(json.dumps(owners.tolist()).encode())
    file = cache_folder() / f"partition-{key.hexdigest()[:16]}.npz"
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            indices, sizes = archive["indices"], archive["sizes"]
        return tuple(np.split(indices, np.cumsum(sizes)[:-1]))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (*DAMAGE_ERRORS, OSError) as problem:
        log(WARNING, "%s is damaged and is made again: %s", file, problem)
    partition = partition_indices(labels, num_partitions, owners=owners, **settings)
    _save_partition(partition, file)
    return partition


def _save_partition(partition: Partition, file: Path) -> None:
    content = BytesIO()
    sizes = np.array([len(part) for part in partition])
    np.savez(content, indices=np.concatenate(partition), sizes=sizes)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content.getvalue(), concurrent=True)
    except OSError as problem:
        log(WARNING, "The partition cannot be cached in %s: %s", file.parent, problem)
