"""Convert between a model's tensors and Flower's records, with few copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from strategies.decoding import decode, encode


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Pack tensors, for example a ``state_dict``, under their names."""
    on_cpu = move_to([tensor.detach() for tensor in tensors.values()], "cpu")
    # Records are in C order, whatever the memory format of the model.
    packed = (encode(tensor.contiguous().numpy()) for tensor in on_cpu)
    return ArrayRecord(dict(zip(tensors, packed, strict=True)))


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Unpack arrays into tensors that own their memory."""
    # Copies: Flower's arrays are read-only, and torch warns about sharing those.
    copies = ((name, np.array(decode(array))) for name, array in arrays.items())
    return {name: torch.from_numpy(values) for name, values in copies}


def load_arrays(model: nn.Module, arrays: ArrayRecord) -> None:
    """Write received arrays into a model, in place."""
    tensors = model.state_dict()
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        for name, tensor in tensors.items():
            # The NumPy array shares the tensor's memory, in any memory format.
            np.copyto(tensor.detach().numpy(), decode(arrays[name]))
        return
    (device,) = {tensor.device for tensor in tensors.values()}
    received = to_tensors(arrays)
    on_device = move_to([received[name] for name in tensors], device)
    with torch.no_grad():
        for tensor, values in zip(tensors.values(), on_device, strict=True):
            tensor.copy_(values)


def move_to(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Return tensors on a device, with one transfer for each dtype.

    A model has hundreds of small tensors, and a GPU waits for each transfer.
    """
    if all(tensor.device.type == torch.device(device).type for tensor in tensors):
        return list(tensors)
    moved: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        indices = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[i].reshape(-1) for i in indices]).to(device)
        parts = torch.split(flat, [tensors[i].numel() for i in indices])
        for i, part in zip(indices, parts, strict=True):
            moved[i] = part.view(tensors[i].shape)
    return [moved[i] for i in range(len(tensors))]


def with_dtypes_of(like: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return averaged arrays in the dtypes of ``like``; integers are rounded.

    Flower multiplies every array by a float. A BatchNorm counter that is 35 on every
    client becomes 34.999…, and loading it would truncate it to 34.
    """
    return ArrayRecord({k: _cast(array, like[k]) for k, array in arrays.items()})


def _cast(array: Array, like: Array) -> Array:
    if array.dtype == like.dtype:
        return array
    values, dtype = decode(array), np.dtype(like.dtype)
    if np.issubdtype(dtype, np.integer):
        values = np.rint(values)
    # rint returns a scalar for an array without dimensions.
    return encode(np.asarray(values, dtype))
