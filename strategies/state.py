"""What a strategy carries from round to round, so that a run can go on later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ServerState", "joined", "parted"]


class ServerState(NamedTuple):
    """Arrays, and what JSON can say; both by name."""

    arrays: dict[str, npt.NDArray[Any]]
    values: dict[str, Any]


def joined(
    groups: Mapping[str, Mapping[str, npt.NDArray[Any]]],
) -> dict[str, npt.NDArray[Any]]:
    """Return named groups of arrays as one; ``x`` of ``velocity`` is ``velocity/x``."""
    return {
        f"{group}/{name}": np.asarray(array)
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def parted(
    arrays: Mapping[str, npt.NDArray[Any]], group: str
) -> dict[str, npt.NDArray[Any]]:
    """Return one group of what :func:`joined` has made."""
    start = f"{group}/"
    # Copies: what is read from a file may be read-only.
    return {
        name.removeprefix(start): np.array(array)
        for name, array in arrays.items()
        if name.startswith(start)
    }
