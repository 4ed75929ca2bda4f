"""Labels that count classes by name: two sources may count them differently."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["refuse_unknown_classes", "renumbered"]


def refuse_unknown_classes(
    names: Sequence[str], known: Sequence[str], place: str, whose: str
) -> None:
    """Raise ValueError if one of the names is not known.

    Parameters
    ----------
    names, known : Sequence[str]
        Of classes.
    place : str
        What has the names, for the message.
    whose : str
        What has the known ones, for the message.
    """
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"{place} has the class(es) {', '.join(unknown)}; those of {whose} are "
            f"{', '.join(known)}; leave the others out, or give them these names"
        )


def renumbered(
    labels: NDArray[np.int64], names: Sequence[str], wanted: Sequence[str]
) -> NDArray[np.int64]:
    """Return labels that count ``names`` as those that count ``wanted``.

    Each label and each name must have been checked; the same names in the same order
    give the labels back.
    """
    places = np.array([wanted.index(name) for name in names], np.int64)
    return places[labels]
