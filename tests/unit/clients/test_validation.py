"""What the block refuses, and blocks inside blocks."""

import copy

import pytest
import torch
from torch import Tensor, nn

from clients import eligible_layers, feedback_alignment
from clients.feedback.alignment import FEEDBACKS, SCALINGS
from tests.unit.clients.cases import moved, same_bits
from tests.unit.clients.reference import distance, reference_twin


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    ).double()


def grads(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


def refused(model: nn.Module, layers: object, **options: str) -> str:
    """Return the message of the ValueError; the model must be untouched by it."""
    before = [list(vars(m)) for m in model.modules()]
    with (
        pytest.raises(ValueError) as caught,  # noqa: PT011
        feedback_alignment(model, layers, **options),
    ):
        pytest.fail("the block was entered")
    assert [list(vars(m)) for m in model.modules()] == before
    return str(caught.value)


def suggested(message: str) -> str:
    """Return the layers a message suggests, quoted or not."""
    return message.split("eligible layers: ")[1].replace("'", "")


@pytest.mark.parametrize(
    ("layers", "blamed"),
    [
        (["nothing"], "'nothing'"),
        (["2", "2.weight"], "'2.weight'"),
        (["2", "3", "1", "4"], "'3', '1'"),
        ([""], "''"),
    ],
)
def test_a_wrong_layer_is_named_with_the_right_ones(
    layers: list[str], blamed: str
) -> None:
    message = refused(network(), layers)
    assert f"layer {blamed}:" in message
    assert suggested(message) == "0, 2, 4"


def test_a_model_without_eligible_layers_says_so() -> None:
    assert suggested(refused(nn.Sequential(nn.ReLU()), ["0"])) == "none"


def test_a_model_that_is_a_layer_is_not_said_to_have_none() -> None:
    assert eligible_layers(nn.Linear(2, 2)) == [""]
    assert suggested(refused(nn.Linear(2, 2), ["weight"])) != "none"


def test_a_single_name_is_refused_as_a_collection() -> None:
    """As a sequence of characters "2" would even be a layer."""
    assert "not '2'" in refused(network(), "2")


@pytest.mark.parametrize("option", ["feedback", "scaling"])
@pytest.mark.parametrize("value", ["", "Global", "TENSOR", "uniform", "global "])
def test_an_unknown_option_is_refused_with_the_allowed_ones(
    option: str, value: str
) -> None:
    message = refused(network(), ["2"], **{option: value})
    assert message.startswith(f"{option} {value!r} is unknown")
    allowed = {"feedback": FEEDBACKS, "scaling": SCALINGS}[option]
    assert all(repr(name) in message for name in allowed)
    # Even if there is nothing to align.
    assert refused(network(), [], **{option: value}) == message


def test_attention_is_refused_even_inside_a_transformer() -> None:
    model = nn.TransformerEncoderLayer(4, 2, 4)
    for name in ("self_attn.out_proj", "self_attn"):
        assert suggested(refused(model, [name])) == "linear1, linear2"


@pytest.mark.parametrize(
    "layers",
    [["2", "4"], ("2", "4"), {"2", "4"}, {"2": 1, "4": 1}, ["2", "4", "2"]],
    ids=lambda layers: type(layers).__name__,
)
def test_any_collection_of_names_will_do(layers: object) -> None:
    model, x = network(), torch.randn(3, 4).double()
    twin = reference_twin(model, ["2", "4"])
    with feedback_alignment(model, layers):
        torch.manual_seed(1)
        moved(model)
        ours = grads(model, x)
    torch.manual_seed(1)
    moved(twin)
    # Of the first layer; before BatchNorm a bias has no gradient to compare.
    assert distance(ours[:2], grads(twin, x)[:2]) < 1e-12
    assert eligible_layers(model) == ["0", "2", "4"]


def test_names_from_a_generator() -> None:
    model = network()
    with feedback_alignment(model, (name for name in ["2", "4"])):
        assert eligible_layers(model) == ["0"]


def test_a_block_inside_a_block_on_the_same_layer_is_refused() -> None:
    """And the outer one goes on with its own weights on entry."""
    model, x = network(), torch.randn(3, 4).double()
    with feedback_alignment(model, ["2"]):
        moved(model)
        aligned = grads(model, x)
        assert suggested(refused(model, ["4", "2"])) == "0, 4"
        assert same_bits(grads(model, x), aligned)
    assert not same_bits(grads(model, x), aligned)
    with feedback_alignment(model, ["2"]):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_inside_a_block_on_other_layers(fails: bool) -> None:
    model, x = network(), torch.randn(3, 4).double()
    state = copy.deepcopy(model.state_dict())
    plain = copy.deepcopy(model)
    outer, inner = reference_twin(model, ["2"]), reference_twin(model, ["2"])
    with feedback_alignment(model, ["2"]):
        torch.manual_seed(1)
        moved(model)
        for twin in (plain, outer, inner):
            torch.manual_seed(1)
            moved(twin)
        inner = reference_twin(inner, ["4"], "channel")
        try:
            with feedback_alignment(model, ["4"], scaling="channel"):
                for twin in (plain, outer, inner, model):
                    torch.manual_seed(2)
                    moved(twin)
                both = grads(model, x)
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert fails
        one = grads(model, x)
    none = grads(model, x)
    # The first layer, through which all errors come, tells who was aligned.
    assert distance(both[:1], grads(inner, x)[:1]) < 1e-12
    assert distance(one[:1], grads(outer, x)[:1]) < 1e-12
    assert same_bits(none, grads(plain, x))
    assert distance(both[:1], one[:1]) > 1e-6
    assert distance(one[:1], none[:1]) > 1e-6
    assert list(model.state_dict()) == list(state)


def test_two_models_at_once() -> None:
    first, second = network(), network()
    with feedback_alignment(first, ["2"]), feedback_alignment(second, ["2"]):
        assert eligible_layers(first) == eligible_layers(second) == ["0", "4"]
    assert eligible_layers(first) == eligible_layers(second) == ["0", "2", "4"]


def test_the_second_name_of_a_shared_layer_is_not_a_layer_of_its_own() -> None:
    """``named_modules`` lists it once."""
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert suggested(refused(model, ["2"])) == "0"


def test_the_default_feedback_and_scaling_are_the_papers() -> None:
    assert FEEDBACKS == ("global", "random", "dfa")
    assert SCALINGS == ("tensor", "channel", "none")
    model, x, results = network(), torch.randn(3, 4).double(), []
    for options in ({}, {"feedback": "global", "scaling": "tensor"}):
        twin = copy.deepcopy(model)
        with feedback_alignment(twin, ["2", "4"], **options):
            torch.manual_seed(1)
            moved(twin)
            results.append(grads(twin, x))
    assert same_bits(*results)
