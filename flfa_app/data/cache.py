"""Data sets, decoded once for all processes of a machine.

A data set is a folder of ``.npy`` files, mapped into memory by whoever uses it. The
folder is complete or not there: it is written under another name and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from flwr.common.logger import log
from numpy.typing import NDArray

from flfa_app.data.dataset import Images
from flfa_app.data.validation import DAMAGE

__all__ = ["cache_folder", "cached_images"]

# 2: what 1 kept may be of 16-bit pictures, or of another data set's file.
# 3: what 2 kept may be of another data set's file, or count classes in another order.
FORMAT = 3
VARIABLE = "FLFA_CACHE"
_ABOUT = "about.json"
# What reading a folder raises that is not there, or not as it was written.
_DAMAGE = (*DAMAGE, OSError, TypeError)


def cache_folder() -> Path:
    """Return where the decoded data sets of this user are."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "flfa"


def cached_images(
    name: str,
    image_size: int,
    files: Iterable[Path],
    identity: str,
    decode: Callable[[], Images],
) -> Images:
    """Return a data set from the cache; decode it first if it is not there.

    Parameters
    ----------
    name : str
        Of the data set.
    image_size : int
        It was asked for.
    files : Iterable[Path]
        The source: another size or time of one of them is another data set.
    identity : str
        Further text that tells two data sets apart.
    decode : Callable[[], Images]
        Reads the source. One process does, the others wait for it.

    Raises
    ------
    OSError
        If the cache cannot be written.
    """
    root = cache_folder()
    folder = root / f"{name}-{_fingerprint(name, image_size, files, identity)}"
    try:
        # Also where the cache is for reading only.
        return _load(folder)
    except _DAMAGE:
        pass
    with _writing(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock")
        lock.acquire()
    try:
        if folder.exists():
            try:
                return _load(folder)
            except _DAMAGE as problem:
                log(WARNING, "%s is damaged and made again: %s", folder, problem)
        log(INFO, "Decoding %s once, into %s", name, folder)
        images = decode()
        with _writing(root):
            _save(images, folder)
        return _load(folder)
    finally:
        lock.release()


def _fingerprint(
    name: str, image_size: int, files: Iterable[Path], identity: str
) -> str:
    states = [
        [str(path.resolve()), status.st_size, status.st_mtime_ns]
        for path in sorted(files)
        for status in [path.stat()]
    ]
    text = json.dumps([FORMAT, name, image_size, identity, states])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _save(images: Images, folder: Path) -> None:
    """Write a folder; there is no moment at which half of it could be read."""
    partial = folder.with_name(folder.name + ".partial")
    # Who was killed while writing has left it; the lock says that nobody writes now.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    arrays: dict[str, NDArray[Any]] = {
        "train": images.train,
        "train-labels": images.train_labels,
        "test": images.test,
        "test-labels": images.test_labels,
    }
    # Their names may be anything; those of files may not.
    for i, (extra, labels) in enumerate(images.extra_tests.values()):
        arrays |= {f"extra-{i}": extra, f"extra-{i}-labels": labels}
    for i, column in enumerate(images.columns.values()):
        arrays[f"column-{i}"] = column
    for name, array in arrays.items():
        with (partial / f"{name}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            _flush(file)
    about = {
        "class-names": images.class_names,
        "mean": images.mean,
        "deviation": images.deviation,
        "extra-tests": list(images.extra_tests),
        "columns": list(images.columns),
        "arrays": {name: _kind(array) for name, array in arrays.items()},
    }
    with (partial / _ABOUT).open("w") as file:
        json.dump(about, file, indent=1)
        _flush(file)
    _flush_folder(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    _flush_folder(folder.parent)


def _load(folder: Path) -> Images:
    about = json.loads((folder / _ABOUT).read_text())

    def array(name: str, mode: Any = None) -> NDArray[Any]:
        file = folder / f"{name}.npy"
        loaded: NDArray[Any] = np.load(file, mmap_mode=mode, allow_pickle=False)
        if _kind(loaded) != about["arrays"][name]:
            raise ValueError(f"{file.name} is {_kind(loaded)}")
        return loaded

    return Images(
        train=array("train", "r"),
        train_labels=array("train-labels"),
        test=array("test", "r"),
        test_labels=array("test-labels"),
        class_names=tuple(about["class-names"]),
        mean=tuple(about["mean"]),
        deviation=tuple(about["deviation"]),
        extra_tests={
            name: (array(f"extra-{i}", "r"), array(f"extra-{i}-labels"))
            for i, name in enumerate(about["extra-tests"])
        },
        columns={name: array(f"column-{i}") for i, name in enumerate(about["columns"])},
    )


def _kind(array: NDArray[Any]) -> list[Any]:
    return [str(array.dtype), *array.shape]


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # where a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise OSError(
            f"the decoded images cannot be kept in {root}: {problem}; make the folder "
            f"writable, make room in it, or set the environment variable {VARIABLE} to "
            "another"
        ) from problem
