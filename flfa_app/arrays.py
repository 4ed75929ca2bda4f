"""Between a model's tensors and Flower's records, with as few copies as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from strategies.decoding import decoded, encoded

__all__ = ["load_arrays", "to_arrays", "to_tensors", "with_dtypes_of"]


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Pack tensors (a ``state_dict``, say) under their names."""
    here = moved([tensor.detach() for tensor in tensors.values()], "cpu")
    # In C order, whatever the layout of the model.
    packed = (encoded(tensor.contiguous().numpy()) for tensor in here)
    return ArrayRecord(dict(zip(tensors, packed, strict=True)))


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Unpack arrays into tensors of their own."""
    # Copies, because what Flower holds is read-only, which torch warns about.
    copies = ((name, np.array(decoded(array))) for name, array in arrays.items())
    return {name: torch.from_numpy(values) for name, values in copies}


def load_arrays(model: nn.Module, arrays: ArrayRecord) -> None:
    """Write received arrays into a model, in place."""
    tensors = model.state_dict()
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        for name, tensor in tensors.items():
            # The tensor's own memory, however it is laid out.
            np.copyto(tensor.detach().numpy(), decoded(arrays[name]))
        return
    (device,) = {tensor.device for tensor in tensors.values()}
    received = to_tensors(arrays)
    there = moved([received[name] for name in tensors], device)
    with torch.no_grad():
        for tensor, values in zip(tensors.values(), there, strict=True):
            tensor.copy_(values)


def moved(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Return tensors on a device: those of one type cross over together.

    A model has hundreds of small tensors, and each transfer makes a GPU wait.
    """
    if all(tensor.device.type == torch.device(device).type for tensor in tensors):
        return list(tensors)
    crossed: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[i].reshape(-1) for i in places]).to(device)
        parts = torch.split(flat, [tensors[i].numel() for i in places])
        for i, part in zip(places, parts, strict=True):
            crossed[i] = part.view(tensors[i].shape)
    return [crossed[i] for i in range(len(tensors))]


def with_dtypes_of(like: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return ``arrays`` in the types they had before they were averaged.

    Flower multiplies everything by a float: a counter of BatchNorm that is 35 on every
    client comes back as 34.999…, and loading it would cut it off to 34.
    """
    return ArrayRecord({k: _cast(array, like[k]) for k, array in arrays.items()})


def _cast(array: Array, like: Array) -> Array:
    if array.dtype == like.dtype:
        return array
    values, dtype = decoded(array), np.dtype(like.dtype)
    if np.issubdtype(dtype, np.integer):
        values = np.rint(values)
    # NumPy makes a scalar of rint's zero dimensions.
    return encoded(np.asarray(values, dtype))
