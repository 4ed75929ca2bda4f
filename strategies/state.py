"""The state of a strategy between two rounds, for a checkpoint."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ServerState", "flatten_state", "state_group"]


class ServerState(NamedTuple):
    """Arrays by name, and further values that JSON can represent."""

    arrays: dict[str, npt.NDArray[Any]]
    values: dict[str, Any]


def flatten_state(
    groups: Mapping[str, Mapping[str, npt.NDArray[Any]]],
) -> dict[str, npt.NDArray[Any]]:
    """Return groups of arrays as one; ``x`` of ``velocity`` is ``velocity/x``."""
    return {
        f"{group}/{name}": np.asarray(array)
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def state_group(
    arrays: Mapping[str, npt.NDArray[Any]], group: str
) -> dict[str, npt.NDArray[Any]]:
    """Return copies of one group's arrays; the inverse of :func:`flatten_state`."""
    prefix = f"{group}/"
    # Copies, because arrays that were read from a file may be read-only.
    return {
        name.removeprefix(prefix): np.array(array)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
