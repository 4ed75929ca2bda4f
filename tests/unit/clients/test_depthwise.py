"""Fast depthwise layers against the stock ones."""

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from clients import (
    FedSOLTrainer,
    LocalTrainer,
    TrainSettings,
    depthwise,
    eligible_layers,
    fast_depthwise,
    feedback_alignment,
)
from clients.depthwise import DepthwiseConv2d
from tests.unit.clients.cases import (
    channels_last,
    every_copy,
    every_scaling,
    same_bits,
)
from tests.unit.clients.feedback.test_cost import Calls
from tests.unit.clients.reference import distance, reference_twin, train

CHANNELS = 6
# kernel, stride, padding, dilation, height, width
GEOMETRIES = [
    *((3, stride, 1, 1, n, n) for stride in (1, 2, 3) for n in (1, 2, 4)),
    (5, 2, 2, 1, 3, 3),
    (1, 2, 0, 1, 3, 3),
    (2, 1, 1, 1, 1, 2),
    (3, 1, 2, 2, 2, 3),
    ((1, 3), (2, 1), (0, 1), (1, 2), 4, 3),
    ((4, 2), (1, 3), (3, 0), (2, 1), 5, 2),
]
LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    channels_last,
    lambda x: torch.stack([x, x], -1).flatten(3)[..., ::2],
    lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
]
# The rounding of sums of a few hundred products.
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-14}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use pairs wherever it is possible, also where they are slower."""
    monkeypatch.setattr(depthwise, "is_small_map", lambda *sizes: True)


uses_pairs = pytest.mark.usefixtures("always")


def is_fast(outputs: Tensor) -> bool:
    return type(outputs.grad_fn).__name__ == "PairedConvolutionBackward"


def layer(geometry: tuple[Any, ...] = (3, 1, 1, 1), **kwargs: Any) -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, *geometry[:4], groups=CHANNELS, **kwargs)


def network() -> nn.Sequential:
    """Return a model with depthwise layers 2 (on 2x2) and 5 (2x2 to 1x1).

    No bias before a BatchNorm, where its gradient would be only rounding.
    """
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS, 2, stride=2, bias=False),
        nn.BatchNorm2d(CHANNELS),
        layer(),
        nn.ReLU6(inplace=True),
        nn.Tanh(),
        layer((3, 2, 1, 1), bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.Flatten(),
        nn.Linear(CHANNELS, 2),
    ).double()


def images(size: int = 8) -> Tensor:
    return torch.randn(size, 3, 4, 4).double()


def twins(stock: nn.Module) -> tuple[nn.Module, nn.Module]:
    return stock, fast_depthwise(copy.deepcopy(stock))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return output and gradients for an error that depends on the position.

    It has one sign: the sum over it, a bias's gradient, has all of its digits.
    """
    x = x.detach().requires_grad_()
    y = model(x)
    error = (1 + torch.cos(torch.arange(y.numel()))).view_as(y).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *model.parameters()], error)]


# --- Gradients ---------------------------------------------------------------------


@uses_pairs
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_gradients_are_the_stock_layers(geometry: tuple[Any, ...]) -> None:
    """Output and input gradient to the bit, the others to rounding, in its strides."""
    for dtype, bias in ((torch.float32, True), (torch.float64, False)):
        stock, fast = twins(layer(geometry, bias=bias, dtype=dtype))
        for lay_out, batch in zip(LAYOUTS, (1, 7, 7, 2), strict=True):
            x = lay_out(torch.randn(batch, CHANNELS, *geometry[4:], dtype=dtype))
            assert is_fast(fast(x))
            ours, theirs = gradients(fast, x), gradients(stock, x)
            assert same_bits(ours[:2], theirs[:2])
            assert [t.stride() for t in ours[:2]] == [t.stride() for t in theirs[:2]]
            exact = gradients(copy.deepcopy(stock).double(), x.double())
            assert distance(ours[2:], exact[2:]) < CLOSE[dtype]
            for gradient, p in zip(ours[2:], fast.parameters(), strict=True):
                assert (gradient.dtype, gradient.stride()) == (dtype, p.stride())


@uses_pairs
def test_each_element_of_the_kernel_gets_its_pairs() -> None:
    """By hand: x = [1 10] and error [1 100] on a map of one row, kernel 1x3, padding 1.

    The first element joins x0 and y1: 100; the middle 1 * 1 + 10 * 100; the last joins
    x1 and y0: 10.
    """
    fast = fast_depthwise(nn.Conv2d(2, 2, (1, 3), padding=(0, 1), groups=2, bias=False))
    x = torch.tensor([1.0, 10.0]).expand(1, 2, 1, 2)
    fast(x).backward(torch.tensor([1.0, 100.0]).expand(1, 2, 1, 2))
    assert fast.weight.grad is not None
    assert fast.weight.grad.flatten(1).tolist() == [[100.0, 1001.0, 10.0]] * 2


@uses_pairs
def test_special_inputs_and_weights() -> None:
    """A channels-last weight, an empty batch, an infinite pixel."""
    fast = fast_depthwise(layer()).to(memory_format=torch.channels_last)
    fast(torch.randn(2, CHANNELS, 2, 2)).sum().backward()
    assert fast.weight.grad is not None
    assert fast.weight.grad.stride() == fast.weight.stride() == (9, 1, 3, 1)
    stock, fast = twins(layer().double())
    empty, x = torch.randn(2, 2, CHANNELS, 2, 2).double()
    empty = empty[:0]
    assert same_bits(gradients(fast, empty), gradients(stock, empty))
    x[1, 2, 0, 1] = torch.inf
    ours, theirs = (gradients(model, x)[2].isfinite() for model in (fast, stock))
    assert torch.equal(ours, theirs)
    assert 0 < (~ours).sum() < 9


@uses_pairs
@pytest.mark.parametrize(
    "required", [w for w in itertools.product([True, False], repeat=3) if w[1]]
)
def test_only_the_required_gradients_are_computed(required: tuple[bool, ...]) -> None:
    fast = fast_depthwise(layer())
    x = torch.randn(2, CHANNELS, 2, 2, requires_grad=required[0])
    fast.bias.requires_grad_(required[2])
    y = fast(x)
    with Calls() as calls:
        y.sum().backward()
    assert calls.masks == ([[True, False, False]] if required[0] else [])
    assert [t.grad is not None for t in (x, fast.weight, fast.bias)] == list(required)


@uses_pairs
def test_second_derivatives_are_the_stock_layers() -> None:
    stock, fast = twins(layer().double())
    x = torch.randn(2, CHANNELS, 2, 2).double()

    def second(model: nn.Module) -> list[Tensor]:
        at = x.clone().requires_grad_()
        tensors = [at, *model.parameters()]
        loss = model(at).pow(3).sum()
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        size = sum(g.square().sum() for g in first)
        return [*first, *torch.autograd.grad(size, tensors)]

    assert distance(second(fast), second(stock)) < 1e-14


@uses_pairs
def test_a_changed_input_is_detected_as_in_the_stock_layer() -> None:
    fast, x = fast_depthwise(layer()), torch.randn(2, CHANNELS, 2, 2)
    y = fast(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@uses_pairs
def test_twenty_steps_are_the_stock_layers() -> None:
    stock, fast = twins(network())
    x, targets = images(), torch.randn(8, 2).double()
    assert distance(train(fast, x, targets), train(stock, x, targets)) < 1e-12


# --- With feedback alignment -------------------------------------------------------


@uses_pairs
@every_scaling
@pytest.mark.parametrize("feedback", ["global", "random"])
def test_aligned_gradients_are_the_stock_layers(scaling: str, feedback: str) -> None:
    for dtype, lay_out in zip((torch.float32, torch.float64) * 2, LAYOUTS, strict=True):
        x = lay_out(torch.randn(4, CHANNELS, 2, 2, dtype=dtype))
        stock, fast = twins(nn.Sequential(layer().to(dtype)))
        results = []
        for model in (stock, fast):
            with feedback_alignment(model, ["0"], scaling=scaling, feedback=feedback):
                with torch.no_grad():
                    for p in model.parameters():
                        p.add_(torch.sin(torch.arange(p.numel())).view_as(p))
                results.append(gradients(model, x))
                assert is_fast(model(x.detach().requires_grad_())) == (model is fast)
        theirs, ours = results
        assert same_bits(ours[:2], theirs[:2])
        assert distance(ours[2:], theirs[2:]) < CLOSE[dtype]
        # Outside of the block the error goes through the weight, which has moved.
        assert not same_bits(ours[1:2], gradients(fast, x)[1:2])


@uses_pairs
@every_scaling
def test_twenty_aligned_steps_are_the_twins(scaling: str) -> None:
    model, names = network(), ["2", "5", "8"]
    twin = reference_twin(model, names, scaling)
    x, targets = images(), torch.randn(8, 2).double()
    with feedback_alignment(fast_depthwise(model), names, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


@uses_pairs
@pytest.mark.parametrize(
    ("trainer", "feedback"),
    [(LocalTrainer, "dfa"), (LocalTrainer, "random"), (FedSOLTrainer, "global")],
)
def test_a_round_of_a_client(trainer: type[LocalTrainer], feedback: str) -> None:
    """FedSOL: its second pass has the scale of the first."""
    settings = TrainSettings(
        learning_rate=0.1,
        batch_size=4,
        epochs=2,
        fa_layers=("2", "5"),
        feedback=feedback,
    )
    keys = {"fedsol-rho": 0.5, "fedsol-variant": "adaptive", "fedsol-part": "all"}
    inputs, models = channels_last(images(12)), twins(network())
    for model in models:
        trainer(model, settings, keys).fit(inputs, torch.arange(12) % 2)
    theirs, ours = (list(model.parameters()) for model in models)
    assert distance(ours, theirs) < 1e-12


@uses_pairs
def test_the_feedback_is_that_of_the_forward_pass() -> None:
    """w = 2 on entry, 6 in the forward pass, 7 after it: the error is 2 * 3, twice."""
    fast = fast_depthwise(nn.Conv2d(2, 2, 1, groups=2, bias=False))
    nn.init.constant_(fast.weight, 2.0)
    x = torch.ones(1, 2, 1, 1, requires_grad=True)
    with feedback_alignment(nn.Sequential(fast), ["0"]):
        nn.init.constant_(fast.weight, 6.0)
        y = fast(x)
        nn.init.constant_(fast.weight, 7.0)
        for _ in range(2):
            (error,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert error.flatten().tolist() == [6.0, 6.0]
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(y.sum(), x, create_graph=True)


@uses_pairs
@pytest.mark.parametrize("names", [[], ["2", "5"]])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(names: list[str], reentrant: bool) -> None:
    start, x = fast_depthwise(network()), images()
    results = []
    for checkpointed in (True, False):
        model, at = copy.deepcopy(start), x.clone().requires_grad_()
        with feedback_alignment(model, names):
            model[2].weight.data.mul_(-1)
            run = partial(checkpoint, model, use_reentrant=reentrant)
            y = run(at) if checkpointed else model(at)
            y.square().sum().backward()
        results.append([at.grad, *(p.grad for p in model.parameters())])
    assert distance(*results) < 1e-12


# --- Which layers ------------------------------------------------------------------


def test_which_layers_are_changed() -> None:
    class Mine(nn.Conv2d):
        pass

    others = [
        nn.Conv2d(4, 8, 3, padding=1, groups=4),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(1, 1, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding="same", groups=4),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode="circular"),
        Mine(4, 4, 3, padding=1, groups=4),
        parametrizations.weight_norm(nn.Conv2d(4, 4, 3, groups=4)),
        nn.Conv1d(4, 4, 3, padding=1, groups=4),
        nn.ConvTranspose2d(4, 4, 3, groups=4),
    ]
    model = nn.Sequential(*others, nn.Sequential(layer(), layer((1, 2, 0, 3))))
    kinds = [type(m) for m in others]
    parameters = [id(p) for p in model.parameters()]
    names, states = list(model.state_dict()), [list(vars(m)) for m in model.modules()]
    for _ in range(2):
        assert fast_depthwise(model) is model
        assert [type(m) for m in others] == kinds
        assert [type(m) for m in model[-1]] == [DepthwiseConv2d] * 2
        assert [id(p) for p in model.parameters()] == parameters
        assert list(model.state_dict()) == names
        assert [list(vars(m)) for m in model.modules()] == states
    assert type(fast_depthwise(layer())) is DepthwiseConv2d


@uses_pairs
@pytest.mark.parametrize("aligned", [[], ["2"]])
@every_copy
def test_copies_are_fast_and_not_aligned(duplicate: Any, aligned: list[str]) -> None:
    model, x = fast_depthwise(network()), images(2)
    with feedback_alignment(model, aligned):
        twin = duplicate(model)
    assert eligible_layers(twin) == ["0", "2", "5", "8"]
    assert type(twin[2]) is type(twin[5]) is DepthwiseConv2d
    assert same_bits(gradients(twin, x), gradients(model, x))


def test_a_subclass_with_a_convolution_of_its_own_is_not_eligible() -> None:
    class Doubled(DepthwiseConv2d):
        def _conv_forward(self, *args: Any) -> Tensor:
            return 2 * super()._conv_forward(*args)

    assert eligible_layers(nn.Sequential(Doubled(2, 2, 1, groups=2), layer())) == ["1"]


def pruned(module: nn.Module) -> nn.Module:
    return prune.random_unstructured(module, "weight", 0.5)


@uses_pairs
@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, pruned])
@pytest.mark.parametrize("names", [[], ["0"]])
def test_weights_that_are_computed(wrap: Any, names: list[str]) -> None:
    stock, x = layer().double(), torch.randn(4, CHANNELS, 2, 2).double()
    results = []
    for module in twins(stock):
        torch.manual_seed(3)
        model = nn.Sequential(wrap(module))
        assert eligible_layers(model) == ["0"]
        with feedback_alignment(model, names):
            results.append(gradients(model, x))
            assert is_fast(model(x)) == isinstance(model[0], DepthwiseConv2d)
    assert distance(*results) < 1e-12
    if wrap is not pruned:
        parametrize.remove_parametrizations(model[0], "weight")
        assert type(model[0]) is DepthwiseConv2d


@uses_pairs
def test_hooks_stay() -> None:
    stock, calls = layer(), []
    stock.register_forward_hook(lambda *args: calls.append("forward"))
    stock.register_full_backward_hook(lambda *args: calls.append("backward"))
    gradients(fast_depthwise(stock), torch.randn(2, CHANNELS, 2, 2))
    assert calls == ["forward", "backward"]


# --- Where pairs are used ----------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "batch", "size", "expected"),
    [
        ((3, 1, 1), 64, (2, 2), True),
        ((3, 2, 1), 64, (3, 3), True),
        ((5, 2, 2), 64, (4, 4), True),
        ((3, 1, 2, 2), 64, (2, 2), True),
        # 1x6 to 1x6 positions are 36 pairs, the most for a 3x3 kernel.
        ((3, 1, 1), 64, (1, 6), True),
        ((3, 1, 1), 64, (1, 7), False),
        ((5, 1, 2), 64, (4, 4), False),
        # The first window to begin in the map has rows 2 to 4, and there is no row 4.
        ((3, 3, 1), 64, (4, 1), True),
        # A window fits into the height: rows 0 to 2; with stride 2, rows 1 to 3.
        ((3, 1, 1), 64, (3, 1), False),
        ((3, 1, 2, 2), 64, (5, 1), False),
        ((3, 2, 1), 64, (4, 2), False),
        ((3, 2, 0), 64, (3, 3), False),
        ((1, 1, 0), 64, (2, 2), False),
        # 64 * 64 = 4096 maps are enough, 63 * 64 are not.
        ((3, 1, 1), 63, (2, 2), False),
    ],
)
def test_the_rule(
    geometry: tuple[int, ...], batch: int, size: tuple[int, int], expected: bool
) -> None:
    stock, fast = twins(nn.Conv2d(64, 64, *geometry, groups=64))
    x = torch.randn(batch, 64, *size)
    assert is_fast(fast(x)) == expected
    assert is_fast(fast(channels_last(x).requires_grad_())) == expected
    assert is_fast(fast.eval()(x)) == expected
    exact = gradients(stock.double(), x.double())
    assert distance(gradients(fast, x), exact) < 1e-6


def compiled(module: nn.Module, x: Tensor) -> Tensor:
    torch.compiler.reset()
    return torch.compile(module, backend="eager", fullgraph=True)(x)


def differentiated(module: nn.Module, x: Tensor) -> Tensor:
    def size(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, weights, x).square().sum()

    return torch.func.grad(size)(dict(module.named_parameters()))["weight"]


def forward_mode(module: nn.Module, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(module(forward_ad.make_dual(x, x.cos()))).tangent


def autocast(module: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return module(x)


ELSEWHERE: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "no-grad": lambda m, x: torch.no_grad()(m)(x),
    "frozen": lambda m, x: m.requires_grad_(False)(x),
    "autocast": autocast,
    "half": lambda m, x: m.bfloat16()(x.bfloat16()),
    "unbatched": lambda m, x: m(x[0]),
    "device": lambda m, x: torch.zeros_like(m.to("meta")(x.to("meta")), device="cpu"),
    "onednn": lambda m, x: m(x.to_mkldnn()).to_dense(),
    "traced": lambda m, x: torch.jit.trace(m, x)(x),
    "scripted": lambda m, x: torch.jit.script(m)(x),
    "compiled": compiled,
    "symbolic": lambda m, x: torch.fx.symbolic_trace(nn.Sequential(m))(x),
    "vmap": lambda m, x: torch.func.vmap(m)(x[None])[0],
    "torch.func.grad": differentiated,
    "forward-mode": forward_mode,
}


@uses_pairs
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("use", ELSEWHERE)
def test_elsewhere_it_is_the_stock_layer(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, fast = twins(layer())
    x = torch.randn(4, CHANNELS, 2, 2)
    assert is_fast(fast(x))
    monkeypatch.setattr(depthwise, "PairedConvolution", None)
    assert torch.equal(ELSEWHERE[use](fast, x), ELSEWHERE[use](stock, x))


@uses_pairs
@pytest.mark.parametrize("shape", [(2, CHANNELS + 1, 2, 2), (CHANNELS,)], ids=str)
def test_a_wrong_input_is_refused_as_by_the_stock_layer(shape: tuple[int, ...]) -> None:
    messages = []
    for module in twins(layer()):
        with pytest.raises(RuntimeError) as refused:
            module(torch.randn(shape))
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
