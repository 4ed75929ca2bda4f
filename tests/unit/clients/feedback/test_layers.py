"""Which layers can use feedback alignment, and on which it has an effect."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from clients import effective_layers, eligible_layers, feedback_alignment
from tests.unit.clients.cases import same_bits


def test_every_kind_in_module_order() -> None:
    """The order of registration, not the alphabet's."""
    model = nn.Sequential(
        nn.Conv3d(1, 1, 1),
        nn.ReLU(),
        nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Conv1d(1, 1, 1)),
        nn.Conv2d(1, 1, 1, padding="same"),
        nn.Bilinear(1, 1, 1),
        nn.ConvTranspose2d(1, 1, 1),
        nn.LSTM(1, 1),
        nn.Embedding(1, 1),
    )
    assert eligible_layers(model) == ["0", "2.0", "2.2", "3"]
    model = nn.ModuleDict({name: nn.Linear(1, 1) for name in ("z", "a", "m")})
    assert eligible_layers(model) == ["z", "a", "m"]


class OwnForward(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Heir(OwnForward):
    pass


class Renamed(nn.Conv2d):
    """A subclass that leaves ``forward`` alone."""


def test_layers_with_another_forward_are_not_eligible() -> None:
    model = nn.Sequential(OwnForward(1, 1), Heir(1, 1), Renamed(1, 1, 1))
    assert eligible_layers(model) == ["2"]
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].forward = lambda input: input
    assert eligible_layers(model) == ["1"]


def test_parametrised_lazy_and_complex_layers() -> None:
    model = nn.Sequential(
        nn.LazyLinear(2),
        nn.Linear(2, 2, dtype=torch.complex64),
        parametrizations.weight_norm(nn.Linear(2, 2)),
    )
    assert eligible_layers(model) == ["2"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.MultiheadAttention(4, 2), []),
        (nn.TransformerDecoderLayer(4, 2, 4), ["linear1", "linear2"]),
        (nn.Linear(2, 2), [""]),
    ],
    ids=["attention", "decoder", "itself"],
)
def test_the_layers_of_attention_are_not_eligible(
    model: nn.Module, expected: list[str]
) -> None:
    assert eligible_layers(model) == expected


def subclass_with_its_own_convolution() -> nn.Module:
    class Standardised(nn.Conv2d):
        def _conv_forward(self, input: Tensor, weight: Tensor, bias: Any) -> Tensor:
            return super()._conv_forward(input, weight - weight.mean(), bias)

    return Standardised(2, 2, 1)


def layer_that_runs_another() -> nn.Module:
    layer = nn.Conv2d(2, 2, 1)
    layer.forward = nn.Conv2d(2, 2, 1).forward
    return layer


@pytest.mark.parametrize(
    "build", [subclass_with_its_own_convolution, layer_that_runs_another]
)
def test_a_layer_whose_output_the_block_might_change_is_not_eligible(
    build: Any,
) -> None:
    assert eligible_layers(nn.Sequential(build(), nn.Linear(1, 1))) == ["1"]


class Residual(nn.Module):
    """The raw input goes to two layers; a skip connection goes past a third."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)
        self.left = nn.Conv1d(2, 2, 3, padding=1)
        self.right = nn.Conv1d(2, 2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.middle = nn.Conv1d(2, 2, 3, padding=1)
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.left(x) + self.right(x))
        return self.last(input=(h + self.middle(h)).flatten(1))


def test_the_layers_on_the_raw_input_have_no_effect() -> None:
    assert effective_layers(Residual(), torch.randn(3, 2, 4)) == ["last", "middle"]


def test_a_layer_used_first_and_later_again_has_an_effect() -> None:
    layer = nn.Linear(2, 2)
    assert effective_layers(nn.Sequential(layer, layer), torch.ones(1, 2)) == ["0"]


def test_training_differs_for_the_effective_layers_and_for_no_other() -> None:
    torch.manual_seed(1)
    model, x = Residual().double(), torch.randn(3, 2, 4).double()
    effective = effective_layers(model, x)
    for name in eligible_layers(model):
        results = []
        for names in ([], [name]):
            twin = copy.deepcopy(model)
            optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
            with feedback_alignment(twin, names):
                for _ in range(3):
                    optimizer.zero_grad()
                    twin(x).square().sum().backward()
                    optimizer.step()
            results.append([p.detach() for p in twin.parameters()])
        assert same_bits(*results) == (name not in effective)


def test_behind_frozen_layers_there_is_no_effect() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    model[:2].requires_grad_(False)
    assert effective_layers(model, torch.ones(1, 2)) == ["3"]


@pytest.mark.parametrize("fails", [True, False])
def test_the_model_and_the_random_state_are_not_changed(fails: bool) -> None:
    model = nn.Sequential(
        Residual(), nn.Dropout(0.5), parametrizations.spectral_norm(nn.Linear(2, 2))
    )
    model[0].norm.eval()
    state = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    attributes = [list(vars(m)) for m in model.modules()]
    random_state, x = torch.get_rng_state(), torch.randn(3, 2, 4)
    torch.set_rng_state(random_state)
    if fails:
        with pytest.raises(RuntimeError):
            effective_layers(model, x[:, :1])
    else:
        assert effective_layers(model, x) == ["0.last", "0.middle", "2"]
    assert same_bits(list(model.state_dict().values()), list(state.values()))
    assert [m.training for m in model.modules()] == modes
    assert [list(vars(m)) for m in model.modules()] == attributes
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(mode: Any) -> None:
    model = Residual()
    with mode():
        assert effective_layers(model, torch.ones(1, 2, 4)) == ["last", "middle"]


def test_inside_a_block_aligned_layers_are_not_listed() -> None:
    model = Residual()
    with feedback_alignment(model, ["last"]):
        assert effective_layers(model, torch.ones(2, 2, 4)) == ["middle"]


def test_layers_in_a_reentrant_checkpoint_are_listed() -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return checkpoint(super().forward, input, use_reentrant=True)

    inner = Checkpointed(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model = nn.Sequential(nn.Linear(2, 2), inner)
    assert effective_layers(model, torch.ones(1, 2)) == ["1.0", "1.2"]
