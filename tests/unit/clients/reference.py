"""A slow twin of feedback alignment, written from the paper; shares no code with it.

The input path is a second, visible layer: ``y = f(x.detach(), w, b)`` carries the
gradients of ``w`` and ``b``, and ``f(x, B) - f(x, B).detach()``, which is zero, carries
the gradient of ``x``.
"""

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

Reader = Callable[[nn.Module], Tensor]


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm in double precision."""
    return math.sqrt(float((tensor.detach().double() ** 2).sum()))


def feedback(weight: Tensor, entry: Tensor, scaling: str) -> Tensor:
    """Return ``B`` for the present weight and the one on entry, row by row."""
    weight, entry = weight.detach(), entry.detach()
    if scaling == "none":
        return entry
    if scaling == "tensor":
        size = norm(entry)
        return entry * (norm(weight) / size if size > 0 else 1.0)
    rows = [feedback(w, g, "tensor") for w, g in zip(weight, entry, strict=True)]
    return torch.stack(rows)


def margins(layer: nn.Module) -> list[int]:
    """Return the zeros (or copies) around the map in the order of ``functional.pad``.

    "same" is the definition: ``d * (k - 1)`` in all, the larger half at the end.
    """
    pairs = []
    for axis in range(len(layer.kernel_size)):
        if layer.padding == "valid":
            pairs.append((0, 0))
        elif layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            pairs.append((total // 2, total - total // 2))
        else:
            pairs.append((layer.padding[axis], layer.padding[axis]))
    return [side for pair in reversed(pairs) for side in pair]


def affine(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the layer's map with the given weight; all padding is explicit."""
    if isinstance(layer, nn.Linear):
        return functional.linear(x, weight, bias)
    convolve = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
    batched = x if x.dim() == weight.dim() else x[None]
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    padded = functional.pad(batched, margins(layer), mode)
    y = convolve[weight.dim()](
        padded, weight, bias, layer.stride, 0, layer.dilation, layer.groups
    )
    return y if x.dim() == weight.dim() else y[0]


def dense(layer: nn.Module, weight: Tensor, shape: torch.Size) -> Tensor:
    """Return the layer's linear map as a matrix (inputs, outputs), row by row."""
    size = math.prod(shape)
    basis = torch.eye(size, dtype=weight.dtype).view(size, *shape)
    with torch.no_grad():
        return affine(layer, basis, weight, None).flatten(1)


class ReferenceLayer(nn.Module):
    """A layer with feedback alignment, kept in the model in place of the layer."""

    def __init__(
        self, layer: nn.Module, scaling: str, read: Reader = lambda m: m.weight
    ) -> None:
        super().__init__()
        self.layer = layer
        self.scaling = scaling
        self.read = read
        with torch.no_grad():
            self.register_buffer("entry", read(layer.eval()).clone())
        layer.train()

    def forward(self, input: Tensor) -> Tensor:
        weight = self.read(self.layer)
        through_w = affine(self.layer, input.detach(), weight, self.layer.bias)
        b = feedback(weight, self.entry, self.scaling)
        through_b = affine(self.layer, input, b, None)
        return through_w + (through_b - through_b.detach())


def reference_twin(
    model: nn.Module,
    names: Iterable[str],
    scaling: str = "tensor",
    read: Reader = lambda m: m.weight,
) -> nn.Module:
    """Copy the model and put a :class:`ReferenceLayer` in place of each named layer."""
    twin = copy.deepcopy(model)
    for name in names:
        parent, _, child = name.rpartition(".")
        layer = ReferenceLayer(twin.get_submodule(name), scaling, read)
        setattr(twin.get_submodule(parent), child, layer)
    return twin


def train(
    model: nn.Module, x: Tensor, targets: Tensor, steps: int = 20, lr: float = 0.05
) -> list[Tensor]:
    """Train in place by SGD with momentum; return the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.mse_loss(model(x), targets).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def distance(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """Return the largest ``|a - b| / |b|`` over pairs of tensors."""
    pairs = list(zip(ours, theirs, strict=True))
    assert all(torch.isfinite(a).all() and torch.isfinite(b).all() for a, b in pairs)
    return max(norm(a.double() - b.double()) / (norm(b) or 1.0) for a, b in pairs)
