"""Convert Flower's arrays to NumPy's and back without needless copies."""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Array
from numpy.lib import format as npy

__all__ = ["DecodedArrays", "array_view", "decode", "encode"]

NUMPY = "numpy.ndarray"
# A table, because the type name comes from a client: np.dtype would parse any text.
DTYPES = {np.dtype(code).name: np.dtype(code) for code in "?bhilqBHILQefdFD"}
CACHED_LAYOUTS = 4096  # more arrays than any model has


class _Layout(NamedTuple):
    """The bytes that NumPy writes for arrays of one type and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    header: bytes  # everything before the values
    length: int  # of header and values


def array_view(array: Array) -> npt.NDArray[Any] | None:
    """Return ``array.numpy()`` as a read-only view of the bytes that were received.

    None unless the bytes are exactly what NumPy writes, in C order and with this
    machine's byte order, for the type and the shape that the array declares. The header
    is compared, never parsed.
    """
    if array.stype != NUMPY:
        return None
    try:
        layout = _layout(array.dtype, array.shape)
    except (OverflowError, TypeError, ValueError):  # not a type name or not a shape
        return None
    data = array.data
    if layout is None or len(data) != layout.length:
        return None
    if not data.startswith(layout.header):
        return None
    return np.ndarray(layout.shape, layout.dtype, data, len(layout.header))


def decode(array: Array) -> npt.NDArray[Any]:
    """Return ``array.numpy()``, read-only: a view if possible, otherwise a copy."""
    values = array_view(array)
    if values is None:
        values = array.numpy()
        values.setflags(write=False)
    return values


def encode(values: npt.ArrayLike) -> Array:
    """Return ``Array(np.asarray(values))``, but copy the values only once."""
    values = np.asarray(values)
    layout = _layout(values.dtype.name, values.shape) if values.dtype.isnative else None
    if layout is None or not values.flags.c_contiguous:
        return Array(values)
    data = b"".join((layout.header, values.data))
    return Array(dtype=layout.dtype.name, shape=layout.shape, stype=NUMPY, data=data)


class DecodedArrays(Mapping[str, npt.NDArray[Any]]):
    """A mapping of Flower's arrays that decodes an array when it is read.

    With ``names`` it has only those of the arrays. The arrays are not copied: later
    changes are visible here.
    """

    def __init__(
        self, arrays: Mapping[str, Array], names: Collection[str] | None = None
    ) -> None:
        self._arrays = arrays
        self._names = arrays if names is None else names

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return decode(self._arrays[name])

    def __contains__(self, name: object) -> bool:
        return name in self._names and name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._arrays if name in self._names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@lru_cache(CACHED_LAYOUTS)
def _layout(dtype_name: str, shape: tuple[int, ...]) -> _Layout | None:
    dtype = DTYPES.get(dtype_name)
    # A client's shape may hold 3.0 or True: equal to an int, but not one.
    shape = tuple(map(int, shape))
    if dtype is None or any(length < 0 for length in shape):
        return None
    buffer = BytesIO()
    descr = npy.dtype_to_descr(dtype)
    npy.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    header = buffer.getvalue()
    return _Layout(dtype, shape, header, len(header) + dtype.itemsize * prod(shape))
