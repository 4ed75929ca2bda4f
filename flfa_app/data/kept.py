"""Partitions, drawn once for all processes of a machine.

Drawing one takes seconds, most of them for importing what draws it; every worker of
every run needs it.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from logging import WARNING
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from flfa_app.data.cache import cache_folder
from flfa_app.data.partition import Parts, partition_indices
from flfa_app.data.validation import DAMAGE

__all__ = ["kept_partition"]

FORMAT = 1


def kept_partition(
    labels: NDArray[np.int64],
    num_partitions: int,
    *,
    owners: NDArray[Any] | None = None,
    **settings: Any,
) -> Parts:
    """Return what :func:`~.partition.partition_indices` returns, from the cache or it.

    It is drawn where the cache cannot be read, and used where it cannot be written.
    """
    key = _key(labels, num_partitions, owners, settings)
    file = cache_folder() / f"partition-{key}.npz"
    parts = _read(file)
    if parts is None:
        parts = partition_indices(labels, num_partitions, owners=owners, **settings)
        _write(parts, file)
    return parts


def _key(
    labels: NDArray[np.int64],
    num_partitions: int,
    owners: NDArray[Any] | None,
    settings: dict[str, Any],
) -> str:
    # Another version may draw otherwise.
    drawn_by = [version(name) for name in ("flwr-datasets", "datasets", "numpy")]
    text = json.dumps([FORMAT, drawn_by, num_partitions, sorted(settings.items())])
    key = hashlib.sha256(text.encode())
    key.update(labels.tobytes())
    if owners is not None:
        key.update(json.dumps(owners.tolist()).encode())
    return key.hexdigest()[:16]


def _read(file: Path) -> Parts | None:
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as kept:
            indices, sizes = kept["indices"], kept["sizes"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (*DAMAGE, OSError) as problem:
        log(WARNING, "%s is damaged and made again: %s", file, problem)
        return None
    return tuple(np.split(indices, np.cumsum(sizes)[:-1]))


def _write(parts: Parts, file: Path) -> None:
    """Write under another name and rename: nobody reads half of it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{uuid4().hex}.partial")
        with partial.open("wb") as opened:
            sizes = np.array([len(part) for part in parts])
            np.savez(opened, indices=np.concatenate(parts), sizes=sizes)
        partial.replace(file)
    except OSError as problem:
        log(WARNING, "The partition is not kept for other processes: %s", problem)
