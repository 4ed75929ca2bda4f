"""What the block refuses, blocks inside blocks, and the model after the block."""

import contextlib
import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from clients import eligible_layers, feedback_alignment
from clients.feedback.alignment import FEEDBACKS, SCALINGS, fixed_scales
from tests.unit.clients.cases import (
    every_copy,
    gradients,
    move_weights,
    same_bits,
    through_pickle,
)
from tests.unit.clients.reference import distance, reference_twin

NAMES = ["0", "2", "5", "6"]
Duplicate = Callable[[nn.Module], nn.Module]


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


def grads(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


def attributes(model: nn.Module) -> list:
    """Return everything about a model's modules, except its tensors."""
    return [
        (name, type(m), list(vars(m)), m.forward.__func__, m.forward.__self__ is m)
        for name, m in model.named_modules()
    ] + [list(model.state_dict()), [id(p) for p in model.parameters()]]


# --- Refused arguments -------------------------------------------------------------


def refused(model: nn.Module, layers: object, **options: str) -> str:
    """Return the message of the ValueError; the model must be unchanged."""
    before = [list(vars(m)) for m in model.modules()]
    with (
        pytest.raises(ValueError) as caught,  # noqa: PT011
        feedback_alignment(model, layers, **options),
    ):
        pytest.fail("the block was entered")
    assert [list(vars(m)) for m in model.modules()] == before
    return str(caught.value)


def suggested(message: str) -> str:
    """Return the layers that a message suggests, without quotes."""
    return message.split("eligible layers: ")[1].replace("'", "")


@pytest.mark.parametrize(
    ("layers", "rejected"),
    [
        (["nothing"], "'nothing'"),
        (["2", "2.weight"], "'2.weight'"),
        (["2", "3", "1", "5"], "'3', '1'"),
        ([""], "''"),
    ],
)
def test_a_wrong_layer_is_named_with_the_eligible_ones(
    layers: list[str], rejected: str
) -> None:
    message = refused(network(), layers)
    assert f"layer {rejected}:" in message
    assert suggested(message) == "0, 2, 5, 6"


def test_the_suggestions_of_special_models() -> None:
    assert suggested(refused(nn.Sequential(nn.ReLU()), ["0"])) == "none"
    # A model that is itself a layer is named by the empty string.
    assert suggested(refused(nn.Linear(2, 2), ["weight"])) == ""
    encoder = nn.TransformerEncoderLayer(4, 2, 4)
    for name in ("self_attn.out_proj", "self_attn"):
        assert suggested(refused(encoder, [name])) == "linear1, linear2"
    # named_modules lists a shared layer once, under its first name.
    layer = nn.Linear(4, 4)
    assert suggested(refused(nn.Sequential(layer, nn.ReLU(), layer), ["2"])) == "0"


def test_a_single_name_is_not_a_collection_of_names() -> None:
    """As a sequence of characters "2" would even be a layer."""
    assert "not '2'" in refused(network(), "2")


@pytest.mark.parametrize("option", ["feedback", "scaling"])
@pytest.mark.parametrize("value", ["", "Global", "tensor "])
def test_an_unknown_option_is_refused_with_the_allowed_ones(
    option: str, value: str
) -> None:
    message = refused(network(), ["2"], **{option: value})
    assert message.startswith(f"{option} {value!r} is unknown")
    allowed = {"feedback": FEEDBACKS, "scaling": SCALINGS}[option]
    assert all(repr(name) in message for name in allowed)
    # Even if no layer is to be aligned.
    assert refused(network(), [], **{option: value}) == message


@pytest.mark.parametrize(
    "layers",
    [("2", "5"), {"2", "5"}, {"2": 1, "5": 1}, ["2", "5", "2"], iter(["2", "5"])],
    ids=lambda layers: type(layers).__name__,
)
def test_any_iterable_of_names(layers: object) -> None:
    model, x = network(), batch()
    twin = reference_twin(model, ["2", "5"])
    with feedback_alignment(model, layers):
        assert eligible_layers(model) == ["0", "6"]
        move_weights(model, seed=1)
        ours = grads(model, x)
    move_weights(twin, seed=1)
    assert distance(ours[:1], grads(twin, x)[:1]) < 1e-12


def test_the_defaults_are_the_papers() -> None:
    assert FEEDBACKS == ("global", "random", "dfa")
    assert SCALINGS == ("tensor", "channel", "none")
    model, x, results = network(), batch(), []
    for options in ({}, {"feedback": "global", "scaling": "tensor"}):
        twin = copy.deepcopy(model)
        with feedback_alignment(twin, ["2", "5"], **options):
            move_weights(twin, seed=1)
            results.append(grads(twin, x))
    assert same_bits(*results)


@pytest.mark.parametrize("feedback", ["random", "dfa"])
def test_the_default_seed_is_zero(feedback: str) -> None:
    model, x, results = network(), batch(), []
    for seed in ({}, {"seed": 0}, {"seed": 1}):
        with feedback_alignment(model, ["2"], feedback=feedback, **seed):
            results.append(grads(model, x))
    assert same_bits(*results[:2])
    assert not same_bits(*results[1:])


# --- Blocks inside blocks ----------------------------------------------------------


def test_a_block_inside_a_block_on_the_same_layer_is_refused() -> None:
    """The outer block keeps its own weights on entry."""
    model, x = network(), batch()
    with feedback_alignment(model, ["2"]):
        move_weights(model)
        aligned = grads(model, x)
        assert suggested(refused(model, ["5", "2"])) == "0, 5, 6"
        assert same_bits(grads(model, x), aligned)
    assert not same_bits(grads(model, x), aligned)
    with feedback_alignment(model, ["2"]):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_inside_a_block_on_other_layers(fails: bool) -> None:
    model, x = network(), batch()
    plain = copy.deepcopy(model)
    outer, inner = reference_twin(model, ["2"]), reference_twin(model, ["2"])
    expected = pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext()
    with feedback_alignment(model, ["2"]):
        for twin in (model, plain, outer, inner):
            move_weights(twin, seed=1)
        inner = reference_twin(inner, ["5"], "channel")
        with expected, feedback_alignment(model, ["5"], scaling="channel"):
            for twin in (model, plain, outer, inner):
                move_weights(twin, seed=2)
            both = grads(model, x)
            if fails:
                raise ZeroDivisionError
        one = grads(model, x)
    none = grads(model, x)
    # The gradient of the first layer shows which layers were aligned.
    assert distance(both[:1], grads(inner, x)[:1]) < 1e-12
    assert distance(one[:1], grads(outer, x)[:1]) < 1e-12
    assert same_bits(none, grads(plain, x))
    assert distance(both[:1], one[:1]) > 1e-6
    assert distance(one[:1], none[:1]) > 1e-6


def test_blocks_on_two_models_and_one_after_the_other() -> None:
    """Each block has the weights on its own entry."""
    model, other, x = network(), network(), batch()
    for _ in range(3):
        twin = reference_twin(model, ["2", "5"])
        with feedback_alignment(model, ["2", "5"]), feedback_alignment(other, ["2"]):
            assert eligible_layers(other) == ["0", "5", "6"]
            move_weights(model, seed=4)
            ours = grads(model, x)
        assert eligible_layers(other) == NAMES
        move_weights(twin, seed=4)
        assert distance(ours[:1], grads(twin, x)[:1]) < 1e-12


# --- After the block ---------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, KeyboardInterrupt])
def test_on_exit_the_model_is_as_before(fault: type[BaseException] | None) -> None:
    model = network()
    before, values = attributes(model), copy.deepcopy(model.state_dict())
    expected = pytest.raises(fault) if fault else contextlib.nullcontext()
    with expected, feedback_alignment(model, NAMES):
        assert eligible_layers(model) == []  # they are aligned already
        assert list(model.state_dict()) == list(values)
        assert len(list(model.buffers())) == 3
        model.eval()(batch()).sum().backward()
        model.train()
        if fault:
            raise fault
    assert attributes(model) == before
    assert same_bits(list(model.state_dict().values()), list(values.values()))
    assert attributes(through_pickle(model))[:-1] == before[:-1]


def test_a_copied_forward_is_put_back() -> None:
    """A copy of an aligned layer has a forward of its own, which it keeps."""
    model = network()
    with feedback_alignment(model, ["2"]):
        model = copy.deepcopy(model)
    before = attributes(model)
    assert "forward" in vars(model[2])
    with feedback_alignment(model, ["2"]):
        assert eligible_layers(model) == ["0", "5", "6"]
    assert attributes(model) == before


def test_a_graph_built_inside_uses_the_feedback_after_the_block() -> None:
    """The weights on entry belong to the forward pass, not to the block."""
    model, x = network(), batch()
    twin = reference_twin(model, NAMES)
    with feedback_alignment(model, NAMES):
        move_weights(model, seed=1)
        y = model(x)
    y.square().sum().backward()
    move_weights(twin, seed=1)
    assert distance([p.grad for p in model.parameters()], grads(twin, x)) < 1e-12


# --- Copies made inside the block --------------------------------------------------


@every_copy
def test_a_copy_made_inside_backpropagates_and_can_be_aligned_again(
    duplicate: Duplicate,
) -> None:
    model, x = network(), batch()
    with feedback_alignment(model, NAMES):
        move_weights(model)
        first = duplicate(model)
        aligned = grads(model, x)
    fresh = network()
    fresh.load_state_dict(first.state_dict())
    plain = grads(fresh, x)
    assert same_bits(grads(first, x), plain)
    assert not same_bits(aligned, plain)
    # The copy shares no layer with the model.
    assert not {id(m) for m in first.modules()} & {id(m) for m in model.modules()}
    for twin in (first, duplicate(duplicate(first))):
        assert all(m.forward.__self__ is m for m in twin.modules())
        before = attributes(twin)
        assert eligible_layers(twin) == NAMES
        reference = reference_twin(twin, NAMES)
        with feedback_alignment(twin, NAMES):
            move_weights(twin, seed=2)
            ours = grads(twin, x)
        move_weights(reference, seed=2)
        assert distance(ours, grads(reference, x)) < 1e-12
        assert attributes(twin) == before


def test_copies_of_tied_and_parametrised_weights() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with feedback_alignment(tied, ["0", "1"]):
        for twin in (copy.deepcopy(tied), through_pickle(tied)):
            assert twin[0].weight is twin[1].weight
            assert twin[0].weight is not tied[0].weight
    last = parametrizations.weight_norm(nn.Linear(3, 2))
    model, x = nn.Sequential(nn.Linear(3, 3), last), torch.randn(2, 3)
    with feedback_alignment(model, ["1"]):
        move_weights(model)
        twin = copy.deepcopy(model)
    assert same_bits(gradients(twin, x), gradients(model, x))
    assert eligible_layers(twin) == ["0", "1"]


# --- Fixed scales ------------------------------------------------------------------


def test_fixed_scales_are_those_of_the_last_forward_pass() -> None:
    """The gradient of the input is that of the output times B |w| / |W|."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)).double()
    received = model[1].weight.detach().clone()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

    def propagates_as(weight: Tensor) -> bool:
        (gradient,) = torch.autograd.grad(model[1](x).sum(), x)
        scale = weight.detach().norm() / received.norm()
        ones = torch.ones(5, 2, dtype=torch.float64)
        return torch.allclose(gradient, ones @ (scale * received), rtol=1e-10)

    @contextlib.contextmanager
    def fixed(fails: bool) -> Iterator[None]:
        expected = pytest.raises(KeyError) if fails else contextlib.nullcontext()
        with expected, fixed_scales(model):
            yield
            if fails:
                raise KeyError

    with feedback_alignment(model, ["1"]):
        for fails in (False, True):
            move_weights(model)
            used = model[1].weight.detach().clone()
            assert propagates_as(used)
            with fixed(fails):
                move_weights(model)
                assert propagates_as(used)
                assert not propagates_as(model[1].weight)
            assert propagates_as(model[1].weight)
