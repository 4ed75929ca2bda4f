"""Every private part of torch that this package uses, each behind one function.

A part that a future torch no longer has is replaced by something that is slower but
right. ``tests/contract/test_torch_canaries.py`` fails when that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

__all__ = [
    "BATCH_NORMS",
    "OverridableConv2d",
    "buffers_of",
    "convolve",
    "convolves_like",
    "foreach_add",
    "foreach_add_",
    "foreach_copy_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_norm",
    "foreach_sub",
    "forward_mode_active",
    "function_transforms_active",
    "saved_by_function",
    "saved_tensor_hooks_active",
    "saved_weight",
    "weight_from_hooks",
]

Tensors = Sequence[Tensor]

# --- One call for a list of tensors -----------------------------------------------
# torch's own optimisers use the ``_foreach`` functions. They are bound once, here, so
# that a training step pays nothing for the guard.


def _add(tensors: Tensors, others: Tensors, *, alpha: float = 1) -> Tensors:
    return [a.add(b, alpha=alpha) for a, b in zip(tensors, others, strict=True)]


def _add_(tensors: Tensors, others: Tensors, *, alpha: float = 1) -> None:
    for a, b in zip(tensors, others, strict=True):
        a.add_(b, alpha=alpha)


def _sub(tensors: Tensors, others: Tensors) -> Tensors:
    return [a.sub(b) for a, b in zip(tensors, others, strict=True)]


def _mul(tensors: Tensors, factor: Tensor) -> Tensors:
    return [tensor.mul(factor) for tensor in tensors]


def _mul_(tensors: Tensors, factors: Tensors | float) -> None:
    each: Any = [factors] * len(tensors) if isinstance(factors, float) else factors
    for tensor, factor in zip(tensors, each, strict=True):
        tensor.mul_(factor)


def _norm(tensors: Tensors) -> Tensors:
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


def _copy_(tensors: Tensors, others: Tensors) -> None:
    for a, b in zip(tensors, others, strict=True):
        a.copy_(b)


def _bind(name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(torch, name, fallback)
    return function


foreach_add = _bind("_foreach_add", _add)
foreach_add_ = _bind("_foreach_add_", _add_)
foreach_sub = _bind("_foreach_sub", _sub)
foreach_mul = _bind("_foreach_mul", _mul)
foreach_mul_ = _bind("_foreach_mul_", _mul_)
foreach_norm = _bind("_foreach_norm", _norm)
foreach_copy_ = _bind("_foreach_copy_", _copy_)


# --- What autograd is doing --------------------------------------------------------

_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", None)


def function_transforms_active() -> bool:
    """Whether ``torch.func`` (vmap, grad, ...) is running; True if unknown."""
    return True if _transforms_active is None else bool(_transforms_active())


def forward_mode_active() -> bool:
    """Whether forward-mode differentiation is running; True if unknown."""
    return bool(getattr(forward_ad, "_current_level", 0) >= 0)


def saved_tensor_hooks_active() -> bool:
    """Whether somebody packs the saved tensors (checkpointing); True if unknown."""
    autograd = getattr(torch._C, "_autograd", None)
    top_hooks = getattr(autograd, "_top_saved_tensors_default_hooks", None)
    return top_hooks is None or top_hooks(False) is not None


def saved_weight(node: Any) -> Any:
    """Return where a convolution's autograd node has saved its weight, or None.

    The result has ``register_hooks(pack, unpack)``.
    """
    return getattr(node, "_raw_saved_weight", None)


def saved_by_function(node: Any, function: type, index: int) -> Any:
    """Return where a node of ``function`` has saved its tensor ``index``, or None.

    ``function`` is a subclass of ``torch.autograd.Function``. The result has
    ``register_hooks(pack, unpack)``.
    """
    if getattr(node, "_forward_cls", None) is not function:
        return None
    saved = getattr(node, "_raw_saved_tensors", None)
    return None if saved is None else saved[index]


# --- Parts of modules --------------------------------------------------------------

BATCH_NORMS: tuple[type[nn.Module], ...] = (
    (nn.modules.batchnorm._BatchNorm,)
    if hasattr(nn.modules.batchnorm, "_BatchNorm")
    else (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
)
"""Classes of all BatchNorm layers, for ``isinstance``."""


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the buffers of one module, without those of its children."""
    buffers: dict[str, Tensor | None] | None = vars(module).get("_buffers")
    if buffers is None:
        return dict(module.named_buffers(recurse=False, remove_duplicate=False))
    return buffers


def weight_from_hooks(layer: Any) -> Tensor | None:
    """Compute the weight that a pre-forward hook will set, or None without one.

    torch's older weight norm, spectral norm and pruning keep the weight under other
    names and set ``layer.weight`` only when the layer is called.
    """
    weight: Tensor | None = None
    for hook in getattr(layer, "_forward_pre_hooks", {}).values():
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            weight = hook.compute_weight(layer)
        elif isinstance(hook, SpectralNorm) and hook.name == "weight":
            weight = hook.compute_weight(layer, do_power_iteration=False)
        elif isinstance(hook, BasePruningMethod) and hook._tensor_name == "weight":
            apply_mask: Any = hook.apply_mask
            weight = apply_mask(layer)
    return weight


# --- Convolution layers ------------------------------------------------------------


class OverridableConv2d(nn.Conv2d):
    """A ``nn.Conv2d`` whose subclass replaces :meth:`convolve`.

    Should torch no longer call ``_conv_forward``, it is the stock layer.
    """

    def _conv_forward(
        self, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        return self.convolve(input, weight, bias)

    def convolve(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the output for a given weight and bias."""
        outputs: Tensor = super()._conv_forward(input, weight, bias)
        return outputs


def convolve(
    layer: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor | None:
    """Compute a convolution layer's output for a given weight; None if unsupported."""
    compute = getattr(layer, "_conv_forward", None)
    return None if compute is None else compute(inputs, weight, bias)


def convolves_like(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer inherits the convolution of ``kind`` without overriding it."""
    own, inherited = (
        getattr(class_, "_conv_forward", None) for class_ in (type(layer), kind)
    )
    return own is inherited
