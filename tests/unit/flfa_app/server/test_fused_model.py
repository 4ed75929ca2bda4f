"""A model whose BatchNorm is part of its convolutions, against the model itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flfa_app.models import build_model
from flfa_app.server.fused_model import FusedModel

IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()


def network(name: str, norm: str = "batch") -> nn.Module:
    """A model in double precision whose BatchNorms differ from those of a new model."""
    model = build_model(name, channels=3, size=16, classes=4, norm=norm, seed=0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                norm_layer: Any = layer
                number = layer.num_features
                norm_layer.running_mean.copy_(torch.randn(number, generator=draw))
                norm_layer.running_var.copy_(0.5 + torch.rand(number, generator=draw))
                norm_layer.weight.copy_(0.5 + torch.rand(number, generator=draw))
                norm_layer.bias.copy_(torch.randn(number, generator=draw))
    return model.double()


@torch.no_grad()
def outputs(model: nn.Module) -> Tensor:
    result: Tensor = copy.deepcopy(model).eval()(IMAGES)
    return result


# The other models consist of the same blocks.
@pytest.mark.parametrize("name", ["cnn", "mobilenet_v2", "resnet18"])
def test_it_computes_what_the_model_computes(name: str) -> None:
    """In double precision to 1e-9 of the largest logit; no BatchNorm is left."""
    model = network(name)
    fused = FusedModel(model, IMAGES[:1]).current()
    expected = outputs(model)
    apart = (outputs(fused) - expected).abs().max()
    assert apart <= 1e-9 * expected.abs().max()
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_it_is_in_evaluation_mode(norm: str) -> None:
    """Also if the model is in training mode, where a dropout would be active."""
    model = nn.Sequential(network("cnn", norm), nn.Dropout(0.5)).train()
    fused = FusedModel(model, IMAGES[:1]).current()
    assert not any(module.training for module in fused.modules())
    with torch.no_grad():
        assert torch.equal(fused(IMAGES), outputs(fused))


def test_it_follows_the_weights_of_the_model() -> None:
    model = network("cnn")
    fused = FusedModel(model, IMAGES[:1])
    fused.current()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    torch.testing.assert_close(
        outputs(fused.current()), outputs(model), rtol=1e-9, atol=0
    )


def test_the_model_itself_is_unchanged() -> None:
    model = network("cnn").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    FusedModel(model, IMAGES[:1]).current()
    assert all(m.training for m in model.modules())
    assert [type(m) for m in model.modules()] == kinds
    assert not any(m._forward_hooks for m in model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_without_batch_norm_it_is_the_model() -> None:
    model = network("cnn", "group")
    assert FusedModel(model, IMAGES[:1]).current() is model


class Twice(nn.Module):
    """Uses one convolution twice, once before a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.conv(self.conv(images)))
        return normed


def test_a_layer_that_is_used_twice_is_not_fused() -> None:
    model = Twice().double()
    assert FusedModel(model, IMAGES[:1]).current() is model
