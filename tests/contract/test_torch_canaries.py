"""The private parts of torch are where we use them, and each can be missed.

A failure of a canary means: torch has moved. Training is still right, because
``clients/_torch_compat.py`` falls back, but slower; adapt that file.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import prune

from clients import (
    FedSOLTrainer,
    ScaffoldTrainer,
    TrainSettings,
    _torch_compat,
    depthwise,
    fast_depthwise,
)
from clients.depthwise import PairedConvolution
from clients.feedback import aligned_layer

FOREACH = [name for name in _torch_compat.__all__ if name.startswith("foreach")]
# What is deleted from torch to see the fallbacks.
PRIVATE = [
    *((torch, f"_{name}") for name in FOREACH),
    (torch._C, "_are_functorch_transforms_active"),
    (torch._C._autograd, "_top_saved_tensors_default_hooks"),
    (forward_ad, "_current_level"),
    (nn.modules.batchnorm, "_BatchNorm"),
]


@pytest.fixture
def fallbacks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the compat file, loaded while torch has none of its private parts."""
    spec = importlib.util.spec_from_file_location("copied", _torch_compat.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        for owner, name in PRIVATE:
            patch.delattr(owner, name)
        spec.loader.exec_module(module)
    return module


def tensors(seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = [(3,), (2, 4), ()]
    return [torch.randn(shape, generator=draw).double() for shape in shapes]


# --- Canaries ----------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "name"), PRIVATE, ids=lambda x: str(x)[:40])
def test_torch_has_the_private_part(owner: Any, name: str) -> None:
    assert hasattr(owner, name)


def test_the_foreach_functions_are_torchs() -> None:
    for name in FOREACH:
        assert getattr(_torch_compat, name) is getattr(torch, f"_{name}")


def test_function_transforms_and_forward_mode_are_noticed() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(_torch_compat.function_transforms_active())
        return x

    assert not _torch_compat.function_transforms_active()
    torch.func.vmap(look)(torch.ones(2))
    assert seen == [True]
    assert not _torch_compat.forward_mode_active()
    with forward_ad.dual_level():
        assert _torch_compat.forward_mode_active()


def test_hooks_on_saved_tensors_are_noticed() -> None:
    assert not _torch_compat.saved_tensor_hooks_active()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert _torch_compat.saved_tensor_hooks_active()


def test_a_saved_weight_can_be_replaced() -> None:
    """In the stock backward pass, and in the one of our own function."""
    x = torch.ones(1, 2, 1, 1, requires_grad=True)
    weight = torch.ones(2, 1, 1, 1, requires_grad=True)
    geometry = ((1, 1), (0, 0), (1, 1))
    stock = torch.conv2d(x, weight, None, *geometry, 2)
    paired = PairedConvolution.apply(x, weight, None, *geometry)
    for outputs, saved in (
        (stock, _torch_compat.saved_weight(stock.grad_fn)),
        (paired, _torch_compat.saved_by_function(paired.grad_fn, PairedConvolution, 1)),
    ):
        saved.register_hooks(lambda w: w, lambda w: 5 * w)
        (gradient,) = torch.autograd.grad(outputs.sum(), x)
        assert gradient.flatten().tolist() == [5.0, 5.0]
    assert _torch_compat.saved_weight(paired.grad_fn) is None
    assert _torch_compat.saved_by_function(stock.grad_fn, PairedConvolution, 1) is None


def test_the_buffers_of_a_module_are_its_own_dictionary() -> None:
    norm = nn.BatchNorm1d(2)
    buffers = _torch_compat.buffers_of(nn.Sequential(norm)[0])
    assert list(buffers) == ["running_mean", "running_var", "num_batches_tracked"]
    norm.running_mean = torch.ones(2)
    assert buffers["running_mean"] is norm.running_mean
    assert not _torch_compat.buffers_of(nn.Sequential(norm))


def test_batch_norms() -> None:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    assert all(isinstance(kind(2), _torch_compat.BATCH_NORMS) for kind in kinds)
    assert not isinstance(nn.InstanceNorm1d(2), _torch_compat.BATCH_NORMS)


def test_a_convolution_layer_calls_the_overridden_method() -> None:
    class Doubled(_torch_compat.OverridableConv2d):
        def convolve(self, *args: Any) -> Tensor:
            return 2 * super().convolve(*args)

    layer, x = Doubled(1, 1, 1), torch.ones(1, 1, 2, 2)
    assert torch.equal(layer(x), 2 * torch.conv2d(x, layer.weight, layer.bias))
    stock = nn.Conv2d(1, 1, 1)
    weight, bias = 3 * stock.weight, stock.bias
    outputs = _torch_compat.convolve(stock, x, weight, bias)
    assert outputs is not None
    assert torch.equal(outputs, torch.conv2d(x, weight, bias))


def test_hooks_of_a_pruned_weight_are_found() -> None:
    layer = prune.l1_unstructured(nn.Linear(2, 1), "weight", 1)
    weight = _torch_compat.weight_from_hooks(layer)
    assert weight is not None
    assert torch.equal(weight, layer.weight_orig * layer.weight_mask)
    assert _torch_compat.weight_from_hooks(nn.Linear(2, 1)) is None


# --- Fallbacks ---------------------------------------------------------------------


def test_the_slow_foreach_functions_give_the_same_bits(fallbacks: ModuleType) -> None:
    factor = torch.tensor(0.3, dtype=torch.float64)
    calls: dict[str, list[tuple[Any, ...]]] = {
        "foreach_add": [(tensors(1),)],
        "foreach_add_": [(tensors(1),)],
        "foreach_sub": [(tensors(1),)],
        "foreach_mul": [(factor,)],
        "foreach_mul_": [(tensors(1),), (0.9,)],
        "foreach_norm": [()],
        "foreach_copy_": [(tensors(1),)],
    }
    assert set(calls) == set(FOREACH)
    for name, variants in calls.items():
        for args in variants:
            alpha = {"alpha": -0.7} if "_add" in name else {}
            results = []
            for module in (fallbacks, _torch_compat):
                given = tensors(0)
                returned = getattr(module, name)(given, *args, **alpha)
                results.append(given if name.endswith("_") else returned)
            slow, fast = results
            for a, b in zip(slow, fast, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-15, atol=0)


def test_what_is_unknown_is_taken_for_active(
    fallbacks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fallbacks.function_transforms_active()
    monkeypatch.delattr(forward_ad, "_current_level")
    assert _torch_compat.forward_mode_active()
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    assert _torch_compat.saved_tensor_hooks_active()


def test_nodes_and_modules_without_the_private_parts(fallbacks: ModuleType) -> None:
    assert fallbacks.saved_weight(object()) is None
    assert fallbacks.saved_by_function(object(), PairedConvolution, 1) is None
    assert fallbacks.convolve(nn.Identity(), *[torch.ones(1)] * 3) is None
    assert isinstance(nn.BatchNorm2d(2), fallbacks.BATCH_NORMS)
    norm = nn.BatchNorm1d(2)

    class WithoutBuffers:
        named_buffers = norm.named_buffers

    assert fallbacks.buffers_of(WithoutBuffers()) == _torch_compat.buffers_of(norm)


@pytest.mark.parametrize("trainer", [FedSOLTrainer, ScaffoldTrainer])
def test_a_round_without_any_private_part_gives_the_same_weights(
    trainer: Any, fallbacks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With convolutions, fast depthwise layers and feedback alignment in all layers."""
    config = {"fedsol-rho": 0.5, "fedsol-variant": "adaptive", "fedsol-part": "all"}
    settings = TrainSettings(batch_size=4, epochs=2, fa_layers=("1", "3", "6"))
    inputs, targets = torch.randn(10, 2, 4, 4).double(), torch.arange(10) % 3
    results = []
    for private in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.Conv2d(4, 4, 3, padding=1, groups=4),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3, padding="same"),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16, 3),
        ).double()
        received = {k: 0.1 * torch.ones_like(p) for k, p in model.named_parameters()}
        if not private:
            for module in [m for m in sys.modules if m.startswith("clients.")]:
                for name in _torch_compat.__all__:
                    if name in vars(sys.modules[module]) and name[0].islower():
                        replacement = getattr(fallbacks, name)
                        monkeypatch.setattr(sys.modules[module], name, replacement)
            monkeypatch.setattr(aligned_layer, "saved_weight", lambda node: None)
            assert depthwise.function_transforms_active()
        fit = trainer(fast_depthwise(model), settings, config, received=received)
        fit.fit(inputs, targets)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
