"""Between a model's tensors and Flower's records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

__all__ = ["load_arrays", "to_arrays", "to_tensors", "with_dtypes_of"]


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Pack tensors (a ``state_dict``, say) under their names."""
    return ArrayRecord(
        {name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
    )


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Unpack arrays into tensors of their own."""
    # Copies, because Flower's arrays are read-only, which torch warns about.
    return {k: torch.from_numpy(np.array(array.numpy())) for k, array in arrays.items()}


def load_arrays(model: nn.Module, arrays: ArrayRecord) -> None:
    """Write received arrays into a model, in place."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            # A copy because Flower's array is read-only, which torch warns about.
            tensor.copy_(torch.from_numpy(np.array(arrays[name].numpy())))


def with_dtypes_of(like: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return ``arrays`` in the types they had before they were averaged.

    Flower multiplies everything by a float: a counter of BatchNorm that is 35 on every
    client comes back as 34.999…, and loading it would cut it off to 34.
    """
    cast = {name: _cast(array.numpy(), like[name]) for name, array in arrays.items()}
    return ArrayRecord({name: Array(values) for name, values in cast.items()})


def _cast(values: np.ndarray, like: Array) -> np.ndarray:
    dtype = np.dtype(like.dtype)
    if values.dtype == dtype:
        return values
    if np.issubdtype(dtype, np.integer):
        values = np.rint(values)
    return np.asarray(values, dtype)  # NumPy makes a scalar of rint's zero dimensions
