"""Flower's arrays as NumPy's and back, without copies that are not needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Array
from numpy.lib import format as npy

__all__ = ["Decoded", "decoded", "encoded", "view_of"]

NUMPY = "numpy.ndarray"
# Looked up, not parsed: what a client calls a type may be anything.
DTYPES = {np.dtype(code).name: np.dtype(code) for code in "?bhilqBHILQefdFD"}
KEPT_FORMS = 4096  # more than any model has


class _Form(NamedTuple):
    """How NumPy writes the arrays of one type and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: bytes  # everything before the values
    length: int  # of the whole


def view_of(array: Array) -> npt.NDArray[Any] | None:
    """Return ``array.numpy()`` as a read-only view of the bytes it was sent as.

    None if they are not, byte by byte, what NumPy writes for the type and the shape
    that the array says it has, in C order and of this machine's byte order: nothing is
    parsed here.
    """
    if array.stype != NUMPY:
        return None
    try:
        form = _form(array.dtype, array.shape)
    except (OverflowError, TypeError, ValueError):  # no type, no shape
        return None
    data = array.data
    if form is None or len(data) != form.length or not data.startswith(form.start):
        return None
    return np.ndarray(form.shape, form.dtype, data, len(form.start))


def decoded(array: Array) -> npt.NDArray[Any]:
    """Return ``array.numpy()``, read-only: a view if there can be one, or a copy."""
    values = view_of(array)
    if values is None:
        values = array.numpy()
        values.setflags(write=False)
    return values


def encoded(values: npt.ArrayLike) -> Array:
    """Return ``Array(np.asarray(values))``, but copy the values only once."""
    values = np.asarray(values)
    form = _form(values.dtype.name, values.shape) if values.dtype.isnative else None
    if form is None or not values.flags.c_contiguous:
        return Array(values)
    data = b"".join((form.start, values.data))
    return Array(dtype=form.dtype.name, shape=form.shape, stype=NUMPY, data=data)


class Decoded(Mapping[str, npt.NDArray[Any]]):
    """Flower's arrays as NumPy's, each decoded when it is asked for.

    Parameters
    ----------
    arrays : Mapping[str, Array]
        Not copied: what is done to it is seen here.
    names : Collection[str], optional
        Those of them that are there; all if it is not given.
    """

    def __init__(
        self, arrays: Mapping[str, Array], names: Collection[str] | None = None
    ) -> None:
        self._arrays = arrays
        self._names = arrays if names is None else names

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return decoded(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._arrays if name in self._names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@lru_cache(KEPT_FORMS)
def _form(name: str, shape: tuple[int, ...]) -> _Form | None:
    dtype = DTYPES.get(name)
    # Whole numbers: those of a client may be equal to them and of another type.
    shape = tuple(map(int, shape))
    if dtype is None or any(length < 0 for length in shape):
        return None
    start = BytesIO()
    description = {
        "descr": npy.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    npy.write_array_header_1_0(start, description)
    before = start.getvalue()
    return _Form(dtype, shape, before, len(before) + dtype.itemsize * prod(shape))
