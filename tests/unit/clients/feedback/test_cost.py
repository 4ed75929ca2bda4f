"""No gradient is computed twice or thrown away, and nothing is saved twice."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from clients import feedback_alignment

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")


class Calls(TorchDispatchMode):
    """Count matrix products; record which gradients convolutions must compute."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[str] = Counter()
        self.masks: list[list[bool]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            self.products[name] += 1
        if name == "convolution_backward":
            self.masks.append(list(args[-1]))
        return func(*args, **(kwargs or {}))


def backward_calls(model: nn.Module, x: Tensor, names: list[str]) -> Calls:
    with feedback_alignment(model, names):
        loss = model(x).square().sum()
        with Calls() as calls:
            loss.backward()
    return calls


@pytest.mark.parametrize("padding", [1, "same"])
def test_an_aligned_convolution_computes_the_same_gradients(padding: Any) -> None:
    middle = nn.Conv2d(4, 8, 3, padding=padding)
    model = nn.Sequential(
        nn.Conv2d(4, 4, 1), middle, nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
    )
    x = torch.randn(2, 4, 5, 5)
    plain = backward_calls(model, x, [])
    assert plain.masks == [[True] * 3] * 3 + [[False, True, True]]
    # One call for input, weight and bias, as in backpropagation.
    assert backward_calls(model, x, ["1", "3"]).masks == plain.masks
    # The first layer computes no input gradient.
    assert backward_calls(model, x, ["0"]).masks == plain.masks


@pytest.mark.parametrize(
    ("shape", "bias"), [((5,), True), ((3, 5), False), ((2, 2, 3, 5), True)], ids=str
)
def test_an_aligned_linear_layer_multiplies_as_often(
    shape: tuple[int, ...], bias: bool
) -> None:
    model = nn.Sequential(
        nn.Linear(5, 4, bias=bias), nn.Linear(4, 3, bias=bias), nn.Linear(3, 2)
    )
    plain = backward_calls(model, torch.randn(shape), [])
    # Three weight gradients, two input gradients.
    assert sum(plain.products.values()) == 5
    for names in (["1"], ["0", "1", "2"]):
        ours = backward_calls(model, torch.randn(shape), names)
        assert ours.products == plain.products


def test_frozen_weights_cost_one_product_for_each_layer() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).requires_grad_(False)
    x = torch.randn(2, 5, requires_grad=True)
    assert backward_calls(model, x, ["0", "1"]).products == {"mm": 2}


def saved(model: nn.Module, x: Tensor, names: list[str], scaling: str) -> set[int]:
    """Return the storages, except parameters, saved for the backward pass."""
    pointers = set()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        pointers.add(tensor.untyped_storage().data_ptr())
        return tensor

    with feedback_alignment(model, names, scaling=scaling):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = model(x)
        y.sum().backward()
    return pointers - parameters


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)),
        nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, padding="same")),
        nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8)),
    ],
    ids=["conv", "conv-same", "linear"],
)
def test_no_activation_is_saved_that_backpropagation_would_not_save(
    model: nn.Module,
) -> None:
    """Only the weight on entry, and with scaling the scale."""
    x = torch.randn(2, 4, 4, 4)
    plain = saved(model, x, [], "none")
    assert len(saved(model, x, ["1"], "none")) == len(plain) + 1
    assert len(saved(model, x, ["1"], "tensor")) == len(plain) + 2


@pytest.mark.parametrize("layer", [nn.Conv1d(4, 3, 3), nn.Linear(6, 3)], ids=str)
def test_under_autocast_the_input_is_saved_in_half_precision_only(
    layer: nn.Module,
) -> None:
    model, x = nn.Sequential(layer), torch.randn(2, 4, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, ours = (saved(model, x, names, "none") for names in ([], ["0"]))
    assert len(ours) <= len(plain) + 1
    assert x.untyped_storage().data_ptr() not in plain | ours
