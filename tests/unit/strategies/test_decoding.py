"""Views and encoded arrays against Flower's own decoding and encoding."""

from __future__ import annotations

import warnings
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array

from strategies.decoding import DecodedArrays, array_view, decode, encode

VIEWED = [
    np.array(3),
    np.array([True, False]),
    np.zeros((0, 3), np.float32),
    np.arange(7, dtype=np.float16),
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.arange(3, dtype=np.uint8),
    np.array([1 + 2j], np.complex64),
]
OTHERS = [
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(3).astype(">f4"),
    np.arange(3, dtype=np.longdouble),
    np.array(["a", "bc"]),
]


def name(values):
    return f"{values.dtype}{values.shape}"


def fields(array):
    return array.dtype, tuple(array.shape), array.stype, array.data


def is_same(one, other):
    """Whether type, shape and bytes are equal."""
    types = (one.dtype, one.shape) == (other.dtype, other.shape)
    return types and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("values", VIEWED, ids=name)
def test_a_view_is_flowers_array_without_a_copy(values):
    array = Array(values)
    view = array_view(array)
    assert view is not None
    assert is_same(view, array.numpy())
    assert is_same(decode(array), values)
    assert view.flags.c_contiguous
    assert view.flags.aligned
    if values.size:
        assert np.shares_memory(view, np.frombuffer(array.data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        view[...] = 0


@pytest.mark.parametrize("values", OTHERS, ids=name)
def test_other_arrays_are_decoded_by_flower(values):
    array = Array(values)
    assert array_view(array) is None
    assert is_same(decode(array), values)
    assert not decode(array).flags.writeable


def bytes_with_header(shape, padding):
    """Return three float32 values under a header of one's choice."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64 + padding) + b"\n"
    magic = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little")
    return magic + head + np.arange(3, dtype=np.float32).tobytes()


def changed(**attributes):
    array = Array(np.arange(3, dtype=np.float32))
    for key, value in attributes.items():
        setattr(array, key, value)
    return array


GOOD = Array(np.arange(3, dtype=np.float32)).data
# The declared type or shape differs from the bytes, or the bytes from NumPy's own.
# NumPy reads the header only, and ignores what follows the values.
MISLEADING = {
    "another padding": changed(data=bytes_with_header("(3,)", 64)),
    "another shape": changed(shape=(4,)),
    "another shape of the same size": changed(shape=(1, 3)),
    "another type": changed(dtype="int32"),
    "a type that NumPy would parse": changed(dtype="f4,f4"),
    "a type that is no text": changed(dtype=["float32"]),
    "a negative shape": changed(shape=(-3,)),
    "a shape of words": changed(shape=("three",)),
    "an infinite shape": changed(shape=(float("inf"),)),
    "a list as shape": changed(shape=[3]),
    "a shape too long for a header": changed(shape=(1,) * 40_000),
    "more bytes": changed(data=GOOD + b"more"),
}


@pytest.mark.parametrize("case", MISLEADING)
def test_misleading_arrays_are_decoded_by_flower(case):
    array = MISLEADING[case]
    assert array_view(array) is None
    assert decode(array).tolist() == array.numpy().tolist() == [0, 1, 2]


def test_a_negative_shape_has_no_view():
    """Two negative lengths have a positive product, and NumPy would raise here."""
    shape = (-1, -3)
    array = changed(shape=shape, data=bytes_with_header(shape, 0))
    assert array_view(array) is None


def test_lengths_that_are_not_ints():
    """9.0 == 9 and True == 1, also as keys of the cache: the result is an int."""
    for shape in ((9.0,), (9,), (9.0,)):
        array = Array(np.arange(9.0))
        array.shape = shape
        view = array_view(array)
        assert view is not None
        assert view.shape == (9,)
        assert type(view.shape[0]) is int
    array = Array(np.ones((1, 5)))
    array.shape = (True, 5)
    assert decode(array).tolist() == [[1] * 5]


def pickled():
    data = BytesIO()
    np.save(data, np.array([{}], dtype=object), allow_pickle=True)
    return data.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        changed(stype="torch.tensor"),
        changed(data=GOOD[:-1]),
        changed(data=pickled(), dtype="object", shape=(1,)),
    ],
    ids=range(3),
)
def test_arrays_that_flower_cannot_decode_raise_the_same_error(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of headers
        assert array_view(array) is None
        errors = []
        for function in (Array.numpy, decode):
            with pytest.raises(Exception) as raised:  # noqa: PT011
                function(array)
            errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "values",
    [*VIEWED, *OTHERS, np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::2], 7],
    ids=lambda v: name(np.asarray(v)),
)
def test_an_encoded_array_is_flowers_byte_by_byte(values):
    array = encode(values)
    assert fields(array) == fields(Array(np.asarray(values)))
    assert type(array.data) is bytes, "later changes of the values do not matter"


def test_a_mapping_decodes_an_array_when_it_is_read():
    arrays = DecodedArrays({"a": Array(np.arange(2)), "broken": changed(data=b"")})
    assert list(arrays) == ["a", "broken"]
    assert arrays["a"].tolist() == [0, 1]
    with pytest.raises((EOFError, ValueError)):
        arrays["broken"]


def test_a_mapping_of_some_of_the_arrays():
    """In the order of the arrays; names without an array are left out."""
    record = {name: Array(np.array(i)) for i, name in enumerate("abcd")}
    arrays = DecodedArrays(record, {"d", "b", "x"})
    assert list(arrays) == ["b", "d"]
    assert len(arrays) == 2
    assert dict(arrays) == {"b": 1, "d": 3}
    assert "b" in arrays
    assert "a" not in arrays
    assert "x" not in arrays
    for name in "ax":
        with pytest.raises(KeyError):
            arrays[name]
    assert len(DecodedArrays(record, ())) == 0
