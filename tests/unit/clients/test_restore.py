"""After the block the model is as it was; copies made inside are plain models."""

import contextlib
import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from clients import eligible_layers, feedback_alignment
from tests.unit.clients.cases import gradients, moved, same_bits
from tests.unit.clients.reference import distance, reference_twin

NAMES = ["0", "2", "5", "6"]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 5),
        nn.Linear(5, 3),
    ).double()


def batch() -> Tensor:
    return torch.randn(4, 2, 4, 4, dtype=torch.float64)


def portrait(model: nn.Module) -> list:
    """Everything there is to see of a model's modules, except its tensors."""
    return [
        (name, type(m), list(vars(m)), m.forward.__func__, m.forward.__self__ is m)
        for name, m in model.named_modules()
    ] + [list(model.state_dict()), [id(p) for p in model.parameters()]]


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


every_copy = pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, through_pickle, through_torch_save]
)
Duplicate = Callable[[nn.Module], nn.Module]


@pytest.mark.parametrize("fault", [None, ZeroDivisionError, KeyboardInterrupt])
def test_on_exit_the_model_is_as_before(fault: type[BaseException] | None) -> None:
    model = network()
    before, values = portrait(model), copy.deepcopy(model.state_dict())
    expected = pytest.raises(fault) if fault else contextlib.nullcontext()
    with expected, feedback_alignment(model, NAMES):
        assert eligible_layers(model) == []  # aligned, hence not free any more
        model.eval()(batch()).sum().backward()
        model.train()
        if fault:
            raise fault
    assert portrait(model) == before
    assert same_bits(list(model.state_dict().values()), list(values.values()))
    assert portrait(through_pickle(model))[:-1] == before[:-1]


def test_a_failure_of_the_forward_pass_is_cleaned_up_too() -> None:
    model = network()
    before = portrait(model)
    with pytest.raises(RuntimeError), feedback_alignment(model, NAMES):
        model(torch.ones(1, 7, 4, 4, dtype=torch.float64))
    assert portrait(model) == before


def test_nothing_of_the_block_is_in_the_state_dict() -> None:
    model = network()
    plain = model.state_dict()
    with feedback_alignment(model, NAMES):
        inside = model.state_dict()
        assert list(inside) == list(plain)
        assert [n for n, _ in model.named_buffers()] == [
            n for n in plain if "running" in n or "tracked" in n
        ]
        model.load_state_dict(network().state_dict())


def test_after_the_block_the_model_backpropagates() -> None:
    model, x = network(), batch()
    with feedback_alignment(model, NAMES):
        moved(model)
        model(x)
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    assert same_bits(gradients(model, x), gradients(fresh, x))


def test_a_graph_built_inside_still_uses_the_feedback_after_the_block() -> None:
    """The weights on entry belong to the forward pass, not to the block."""
    model, x = network(), batch()
    twin = reference_twin(model, NAMES)
    with feedback_alignment(model, NAMES):
        torch.manual_seed(1)
        moved(model)
        y = model(x)
    y.sum().backward()
    torch.manual_seed(1)
    moved(twin)
    twin(x).sum().backward()
    ours, theirs = ([p.grad for p in m.parameters()] for m in (model, twin))
    assert distance(ours, theirs) < 1e-12


@every_copy
def test_a_copy_made_inside_backpropagates(duplicate: Duplicate) -> None:
    model, x = network(), batch()
    with feedback_alignment(model, NAMES):
        moved(model)
        twin = duplicate(model)
        aligned = [p.grad for p in through_block(model, x)]
        plain = [p.grad for p in through_block(twin, x)]
    fresh = network()
    fresh.load_state_dict(twin.state_dict())
    expected = [p.grad for p in through_block(fresh, x)]
    assert same_bits(plain, expected)
    assert not same_bits(aligned, expected)
    # Nor does the copy share a tensor or a layer with the model.
    assert not {id(m) for m in twin.modules()} & {id(m) for m in model.modules()}
    assert all(m.forward.__self__ is m for m in twin.modules())


def through_block(model: nn.Module, x: Tensor) -> list[nn.Parameter]:
    model.zero_grad()
    model(x).square().sum().backward()
    return list(model.parameters())


@every_copy
def test_a_copy_made_inside_can_be_aligned_and_copied_again(
    duplicate: Duplicate,
) -> None:
    model, x = network(), batch()
    with feedback_alignment(model, NAMES):
        first = duplicate(model)
    second = duplicate(duplicate(first))
    for twin in (first, second):
        before = portrait(twin)
        assert eligible_layers(twin) == NAMES
        reference = reference_twin(twin, NAMES)
        ours, theirs = [], []
        with feedback_alignment(twin, NAMES):
            for net, grads in ((twin, ours), (reference, theirs)):
                torch.manual_seed(2)
                moved(net)
                grads += [p.grad for p in through_block(net, x)]
        assert distance(ours, theirs) < 1e-12
        assert portrait(twin) == before


@every_copy
def test_a_copy_of_a_single_layer_is_plain(duplicate: Duplicate) -> None:
    model = network()
    with feedback_alignment(model, ["2"]):
        layer = duplicate(model[2])
    assert type(layer) is nn.Conv2d
    x = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    assert torch.equal(layer(x), model[2](x))
    layer.weight.data.zero_()
    assert not layer(x.requires_grad_()).sub(layer.bias.view(1, 4, 1, 1)).any()


def test_a_copy_of_a_tied_weight_stays_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with feedback_alignment(model, ["0", "1"]):
        for twin in (copy.deepcopy(model), through_pickle(model)):
            assert twin[0].weight is twin[1].weight
            assert twin[0].weight is not model[0].weight


def test_a_parametrised_layer_can_be_copied_inside() -> None:
    model = nn.Sequential(
        nn.Linear(3, 3), parametrizations.weight_norm(nn.Linear(3, 2))
    )
    x = torch.randn(2, 3)
    with feedback_alignment(model, ["1"]):
        moved(model)
        twin = copy.deepcopy(model)
    assert same_bits(gradients(twin, x), gradients(model, x))
    assert eligible_layers(twin) == ["0", "1"]
