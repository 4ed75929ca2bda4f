"""Labels of sources that list the same classes in different orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["refuse_unknown_classes", "remap_labels"]


def refuse_unknown_classes(
    names: Sequence[str], known_names: Sequence[str], location: str, known_by: str
) -> None:
    """Raise ValueError if a class is not among the known ones.

    Parameters
    ----------
    names, known_names : Sequence[str]
        Names of classes.
    location : str
        Where ``names`` comes from, for the error message.
    known_by : str
        Where ``known_names`` comes from, for the error message.
    """
    if unknown := [name for name in names if name not in known_names]:
        raise ValueError(
            f"{location} has the class(es) {', '.join(unknown)}; those of {known_by} "
            f"are {', '.join(known_names)}; remove the others or rename them"
        )


def remap_labels(
    labels: NDArray[np.int64], names: Sequence[str], new_names: Sequence[str]
) -> NDArray[np.int64]:
    """Return labels that index ``names`` as labels that index ``new_names``.

    Labels and names must have been validated. If the names are the same in the same
    order, the labels are unchanged.
    """
    new_labels = np.array([new_names.index(name) for name in names], np.int64)
    return new_labels[labels]
