"""Records of arrays, made and read without copies, against Flower's own."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from flfa_app.arrays import (
    load_arrays,
    move_to,
    to_arrays,
    to_tensors,
    with_dtypes_of,
)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_model_crosses_whatever_its_layout(layout: torch.memory_format) -> None:
    sender, receiver = model(), model().to(memory_format=layout)
    with torch.no_grad():
        for tensor in sender.state_dict().values():
            tensor.copy_(torch.randint(9, tensor.shape))
    record = to_arrays(sender.to(memory_format=layout).state_dict())
    for name, tensor in sender.state_dict().items():
        assert record[name].data == Array(tensor.contiguous().numpy()).data
    before = {k: (t.data_ptr(), t.stride()) for k, t in receiver.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of read-only memory
        load_arrays(receiver, record)
    for name, tensor in receiver.state_dict().items():
        assert torch.equal(tensor, sender.state_dict()[name])
        assert before[name] == (tensor.data_ptr(), tensor.stride())  # in place


def test_unpacked_tensors_own_their_memory() -> None:
    record = ArrayRecord({"w": Array(np.ones(3, np.float32))})
    tensors = to_tensors(record)
    tensors["w"] += 1
    assert record["w"].numpy().tolist() == [1, 1, 1]


def test_tensors_move_to_a_device_together_or_stay_where_they_are() -> None:
    """``meta`` is a device of every machine; it keeps the shapes."""
    tensors = [torch.ones(2, 3), torch.tensor(5), torch.ones(4), torch.zeros(0, 2)]
    moved = move_to(tensors, "meta")
    assert [t.device.type for t in moved] == ["meta"] * 4
    assert [t.shape for t in moved] == [t.shape for t in tensors]
    assert [t.dtype for t in moved] == [t.dtype for t in tensors]
    assert move_to(tensors, "cpu")[0] is tensors[0]


def test_types_survive_averaging() -> None:
    """34.999... is 35; float64 means come back as the float32 they were."""
    like = {"n": np.array(35), "w": np.ones(2, np.float32)}
    mean = {"n": np.array(34.99999999999999), "w": np.array([0.1, 0.2], np.float64)}
    records = [ArrayRecord({k: Array(a) for k, a in x.items()}) for x in (like, mean)]
    back = with_dtypes_of(*records)
    assert (back["n"].numpy(), back["n"].dtype, back["n"].shape) == (35, "int64", ())
    np.testing.assert_array_equal(back["w"].numpy(), np.array([0.1, 0.2], np.float32))
