"""Fast depthwise layers beside the stock ones."""

import copy
import io
import itertools
import pickle
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
    both_bias,
    both_dtypes,
    channels_last,
    every_scaling,
    same_bits,
)
from tests.unit.clients.reference import distance, reference_twin, train
from tests.unit.clients.test_cost import Calls

CHANNELS = 6
# kernel, stride, padding, dilation, height, width
GEOMETRIES = [
    *((3, stride, 1, 1, n, n) for stride in (1, 2, 3) for n in (1, 2, 3, 4, 5)),
    *((5, stride, 2, 1, n, n) for stride in (1, 2) for n in (1, 2, 3, 5)),
    (1, 1, 0, 1, 2, 2),
    (1, 2, 0, 1, 3, 3),
    (2, 1, 1, 1, 1, 2),
    (3, 1, 0, 1, 3, 4),
    (3, 1, 2, 1, 2, 2),
    (3, 1, 2, 2, 2, 3),
    (3, 2, 4, 3, 3, 5),
    ((1, 3), (2, 1), (0, 1), (1, 2), 4, 3),
    ((4, 2), (1, 3), (3, 0), (2, 1), 5, 2),
]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "channels-last": channels_last,
    "gaps": lambda x: torch.stack([x, x], -1).flatten(3)[..., ::2],
    "batch-last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
}
# What rounding leaves of sums of a few hundred products.
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-14}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the fast way wherever it is possible, also where it is the slower one."""
    monkeypatch.setattr(depthwise, "is_small_map", lambda *sizes: True)


def is_fast(outputs: Tensor) -> bool:
    return type(outputs.grad_fn).__name__ == "PairedConvolutionBackward"


def layer(geometry: tuple[Any, ...] = (3, 1, 1, 1), **kwargs: Any) -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, *geometry[:4], groups=CHANNELS, **kwargs)


def twins(stock: nn.Module) -> tuple[nn.Module, nn.Module]:
    return stock, fast_depthwise(copy.deepcopy(stock))


def found(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return output and gradients for an error that depends on the place.

    It has one sign: the sum over it, a bias's gradient, has all of its digits.
    """
    x = x.detach().requires_grad_()
    y = model(x)
    error = (1 + torch.cos(torch.arange(y.numel()))).view_as(y).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *model.parameters()], error)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@both_dtypes
@both_bias
def test_gradients_are_the_stock_layers(
    geometry: tuple[Any, ...], layout: str, dtype: torch.dtype, bias: bool
) -> None:
    """Output and input gradient to the bit, the others to rounding, in its strides."""
    stock, fast = twins(layer(geometry, bias=bias, dtype=dtype))
    for batch in (1, 7):
        x = LAYOUTS[layout](torch.randn(batch, CHANNELS, *geometry[4:], dtype=dtype))
        assert is_fast(fast(x))
        ours, theirs = found(fast, x), found(stock, x)
        assert same_bits(ours[:2], theirs[:2])
        assert [t.stride() for t in ours[:2]] == [t.stride() for t in theirs[:2]]
        exact = found(copy.deepcopy(stock).double(), x.double())
        assert distance(ours[2:], exact[2:]) < CLOSE[dtype]
        for gradient, p in zip(ours[2:], fast.parameters(), strict=True):
            assert gradient.dtype == dtype
            assert gradient.stride() == p.stride()


@pytest.mark.usefixtures("always")
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


@pytest.mark.usefixtures("always")
def test_a_channels_last_weight_gets_such_a_gradient() -> None:
    fast = fast_depthwise(layer()).to(memory_format=torch.channels_last)
    assert fast.weight.stride() == (9, 1, 3, 1)
    fast(torch.randn(2, CHANNELS, 2, 2)).sum().backward()
    assert fast.weight.grad is not None
    assert fast.weight.grad.stride() == (9, 1, 3, 1)


@pytest.mark.usefixtures("always")
def test_what_is_infinite_reaches_the_same_elements() -> None:
    stock, fast = twins(layer().double())
    x = torch.randn(2, CHANNELS, 2, 2, dtype=torch.float64)
    x[1, 2, 0, 1] = torch.inf
    ours, theirs = (found(model, x)[2].isfinite() for model in (fast, stock))
    assert torch.equal(ours, theirs)
    assert 0 < (~ours).sum() < 9


@pytest.mark.usefixtures("always")
def test_an_empty_batch() -> None:
    stock, fast = twins(layer())
    x = torch.randn(0, CHANNELS, 2, 2)
    assert same_bits(found(fast, x), found(stock, x))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "wanted", [w for w in itertools.product([True, False], repeat=3) if w[1]], ids=str
)
def test_only_what_is_asked_for_is_computed(wanted: tuple[bool, ...]) -> None:
    fast = fast_depthwise(layer())
    x = torch.randn(2, CHANNELS, 2, 2, requires_grad=wanted[0])
    fast.bias.requires_grad_(wanted[2])
    y = fast(x)
    with Calls() as calls:
        y.sum().backward()
    assert calls.masks == ([[True, False, False]] if wanted[0] else [])
    assert [t.grad is not None for t in (x, fast.weight, fast.bias)] == list(wanted)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("training", [True, False])
def test_twenty_steps_are_the_stock_layers(training: bool) -> None:
    stock, fast = (model.train(training) for model in twins(network()))
    x, targets = torch.randn(8, 3, 4, 4).double(), torch.randn(8, 2).double()
    ours, theirs = train(fast, x, targets), train(stock, x, targets)
    assert distance(ours, theirs) < 1e-12


def network() -> nn.Sequential:
    """Return a model with depthwise layers 2 (on 2x2) and 5 (2x2 to 1x1).

    No bias before a BatchNorm, where its gradient would be rounding and nothing else.
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


@pytest.mark.usefixtures("always")
def test_second_derivatives_are_the_stock_layers() -> None:
    stock, fast = twins(layer().double())
    x = torch.randn(2, CHANNELS, 2, 2).double()

    def second(model: nn.Module) -> list[Tensor]:
        at = x.clone().requires_grad_()
        y = model(at)
        first = torch.autograd.grad(
            y.pow(3).sum(), [at, *model.parameters()], create_graph=True
        )
        size = sum(g.square().sum() for g in first)
        return [*first, *torch.autograd.grad(size, [at, *model.parameters()])]

    assert is_fast(fast(x))
    assert distance(second(fast), second(stock)) < 1e-14


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("scaling", ["tensor", "channel", "none"])
@pytest.mark.parametrize("feedback", ["global", "random"])
@pytest.mark.parametrize("layout", LAYOUTS)
@both_dtypes
def test_feedback_alignment_gives_the_stock_layers_gradients(
    scaling: str, feedback: str, layout: str, dtype: torch.dtype
) -> None:
    x = LAYOUTS[layout](torch.randn(4, CHANNELS, 2, 2, dtype=dtype))
    stock, fast = twins(nn.Sequential(layer().to(dtype)))
    results = []
    for model in (stock, fast):
        with feedback_alignment(model, ["0"], scaling=scaling, feedback=feedback):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(torch.sin(torch.arange(p.numel())).view_as(p))
            results.append(found(model, x))
            assert is_fast(model(x.detach().requires_grad_())) == (model is fast)
    theirs, ours = results
    assert same_bits(ours[:2], theirs[:2])
    assert distance(ours[2:], theirs[2:]) < CLOSE[dtype]
    # Outside of the block the error goes through the weight, which has moved.
    assert not same_bits(ours[1:2], found(fast, x)[1:2])


@pytest.mark.usefixtures("always")
@every_scaling
def test_twenty_steps_with_alignment_are_the_twins(scaling: str) -> None:
    model = network()
    twin = reference_twin(model, ["2", "5", "8"], scaling)
    fast_depthwise(model)
    x, targets = torch.randn(8, 3, 4, 4).double(), torch.randn(8, 2).double()
    with feedback_alignment(model, ["2", "5", "8"], scaling=scaling):
        ours = train(model, x, targets)
    theirs = train(twin, x, targets)
    assert distance(ours, theirs) < 1e-12


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("trainer", [LocalTrainer, FedSOLTrainer])
@pytest.mark.parametrize("feedback", ["global", "random", "dfa"])
def test_a_round_of_a_client(trainer: type[LocalTrainer], feedback: str) -> None:
    """FedSOL: its second pass keeps the scale of the first."""
    settings = TrainSettings(
        learning_rate=0.1,
        batch_size=4,
        epochs=2,
        fa_layers=("2", "5"),
        feedback=feedback,
    )
    keys = {"fedsol-rho": 0.5, "fedsol-variant": "adaptive", "fedsol-part": "all"}
    images = channels_last(torch.randn(12, 3, 4, 4).double())
    models = twins(network())
    for model in models:
        trainer(model, settings, keys).fit(images, torch.arange(12) % 2)
    theirs, ours = (list(model.parameters()) for model in models)
    assert distance(ours, theirs) < 1e-12


@pytest.mark.usefixtures("always")
def test_the_feedback_is_that_of_the_forward_pass() -> None:
    """w = 2 on entry, 6 in the forward pass, 7 after it: the error is 2 * 3, twice."""
    fast = fast_depthwise(nn.Conv2d(2, 2, 1, groups=2, bias=False))
    model = nn.Sequential(fast)
    nn.init.constant_(fast.weight, 2.0)
    x = torch.ones(1, 2, 1, 1, requires_grad=True)
    with feedback_alignment(model, ["0"]):
        nn.init.constant_(fast.weight, 6.0)
        y = model(x)
        nn.init.constant_(fast.weight, 7.0)
        for _ in range(2):
            (error,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert error.flatten().tolist() == [6.0, 6.0]
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("names", [[], ["2", "5"]])
@pytest.mark.parametrize("reentrant", [True, False])
def test_under_checkpointing_nothing_changes(names: list[str], reentrant: bool) -> None:
    start, x = fast_depthwise(network()), torch.randn(8, 3, 4, 4).double()
    results = []
    for checkpointed in (True, False):
        model, at = copy.deepcopy(start), x.clone().requires_grad_()
        with feedback_alignment(model, names):
            with torch.no_grad():
                model[2].weight.mul_(-1)
            run = partial(checkpoint, model, use_reentrant=reentrant)
            y = run(at) if checkpointed else model(at)
            y.square().sum().backward()
        results.append([at.grad, *(p.grad for p in model.parameters())])
    assert distance(*results) < 1e-12


@pytest.mark.usefixtures("always")
def test_a_changed_input_is_noticed_as_in_the_stock_layer() -> None:
    fast, x = fast_depthwise(layer()), torch.randn(2, CHANNELS, 2, 2)
    y = fast(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- which layers -----------------------------------------------------------------


def test_which_layers_are_changed() -> None:
    class Mine(nn.Conv2d):
        pass

    stay = [
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
    model = nn.Sequential(*stay, nn.Sequential(layer(), layer((1, 2, 0, 3))))
    kinds = [type(m) for m in stay]
    parameters = [id(p) for p in model.parameters()]
    names, states = list(model.state_dict()), [list(vars(m)) for m in model.modules()]
    for _ in range(2):
        assert fast_depthwise(model) is model
        assert [type(m) for m in stay] == kinds
        assert [type(m) for m in model[-1]] == [DepthwiseConv2d] * 2
        assert [id(p) for p in model.parameters()] == parameters
        assert list(model.state_dict()) == names
        assert [list(vars(m)) for m in model.modules()] == states
    assert type(fast_depthwise(layer())) is DepthwiseConv2d


def through_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("aligned", [[], ["2"]])
@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), through_torch_save],
)
def test_copies_are_fast_and_plain_again(duplicate: Any, aligned: list[str]) -> None:
    model, x = fast_depthwise(network()), torch.randn(2, 3, 4, 4).double()
    with feedback_alignment(model, aligned):
        twin = duplicate(model)
    assert eligible_layers(twin) == ["0", "2", "5", "8"]
    assert type(twin[2]) is type(twin[5]) is DepthwiseConv2d
    assert same_bits(found(twin, x), found(model, x))
    stock = network()
    stock.load_state_dict(twin.state_dict())
    assert distance(found(twin, x)[1:], found(stock, x)[1:]) < 1e-12


def test_a_subclass_with_a_convolution_of_its_own_is_not_eligible() -> None:
    class Doubled(DepthwiseConv2d):
        def _conv_forward(self, *args: Any) -> Tensor:
            return 2 * super()._conv_forward(*args)

    assert eligible_layers(nn.Sequential(Doubled(2, 2, 1, groups=2), layer())) == ["1"]


def pruned(module: nn.Module) -> nn.Module:
    return prune.random_unstructured(module, "weight", 0.5)


@pytest.mark.usefixtures("always")
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
            results.append(found(model, x))
            assert is_fast(model(x)) == isinstance(model[0], DepthwiseConv2d)
    assert distance(*results) < 1e-12
    assert is_fast(model(x))
    if wrap is not pruned:
        parametrize.remove_parametrizations(model[0], "weight")
        assert type(model[0]) is DepthwiseConv2d


@pytest.mark.usefixtures("always")
def test_hooks_stay() -> None:
    stock, calls = layer(), []
    stock.register_forward_hook(lambda *args: calls.append("forward"))
    stock.register_full_backward_hook(lambda *args: calls.append("backward"))
    found(fast_depthwise(stock), torch.randn(2, CHANNELS, 2, 2))
    assert calls == ["forward", "backward"]


# --- where the fast way is taken --------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "batch", "channels", "size", "expected"),
    [
        ((3, 1, 1), 64, 64, (2, 2), True),
        ((3, 1, 1), 64, 960, (1, 1), True),
        ((3, 2, 1), 16, 576, (2, 2), True),
        ((3, 2, 1), 64, 64, (3, 3), True),
        ((5, 1, 2), 64, 64, (2, 2), True),
        ((5, 1, 2), 64, 64, (3, 3), True),
        ((5, 2, 2), 64, 64, (4, 4), True),
        ((3, 1, 2, 2), 64, 64, (2, 2), True),
        ((3, 1, 1), 64, 64, (1, 6), True),
        # The first window to begin in the map has rows 2 to 4, and there is no row 4.
        ((3, 3, 1), 64, 64, (4, 1), True),
        # A window fits into the height: rows 0 to 2; with stride 2, rows 1 to 3.
        ((3, 1, 1), 64, 64, (3, 3), False),
        ((3, 1, 1), 64, 64, (3, 1), False),
        ((3, 2, 1), 64, 64, (4, 2), False),
        ((3, 2, 0), 64, 64, (3, 3), False),
        ((1, 1, 0), 64, 64, (2, 2), False),
        # 4x4 to 4x4 positions are 256 pairs, above 4 * 25; 1x7 to 1x7 are 49, above 36.
        ((5, 1, 2), 64, 64, (4, 4), False),
        ((3, 1, 1), 64, 64, (1, 7), False),
        # 4095 maps.
        ((3, 1, 1), 65, 63, (2, 2), False),
    ],
)
def test_the_rule(
    geometry: tuple[int, ...],
    batch: int,
    channels: int,
    size: tuple[int, int],
    expected: bool,
) -> None:
    fast = fast_depthwise(nn.Conv2d(channels, channels, *geometry, groups=channels))
    x = torch.randn(batch, channels, *size)
    assert is_fast(fast(x)) == expected
    assert is_fast(fast(channels_last(x).requires_grad_())) == expected
    assert is_fast(fast.eval()(x)) == expected
    stock = nn.Conv2d(channels, channels, *geometry, groups=channels)
    stock.load_state_dict(fast.state_dict())
    exact = found(stock.double(), x.double())
    assert distance(found(fast, x), exact) < 1e-6


def traced(module: nn.Module, x: Tensor) -> Tensor:
    return torch.jit.trace(module, x)(x)


def scripted(module: nn.Module, x: Tensor) -> Tensor:
    return torch.jit.script(module)(x)


def compiled(module: nn.Module, x: Tensor) -> Tensor:
    torch.compiler.reset()
    return torch.compile(module, backend="eager", fullgraph=True)(x)


def symbolic(module: nn.Module, x: Tensor) -> Tensor:
    return torch.fx.symbolic_trace(nn.Sequential(module))(x)


def mapped(module: nn.Module, x: Tensor) -> Tensor:
    return torch.func.vmap(module)(x[None])[0]


def differentiated(module: nn.Module, x: Tensor) -> Tensor:
    def size(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, weights, x).square().sum()

    return torch.func.grad(size)(dict(module.named_parameters()))["weight"]


def forward_mode(module: nn.Module, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(module(forward_ad.make_dual(x, x.cos()))).tangent


def without_gradients(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return module(x)


def in_inference(module: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return module(x)


def frozen(module: nn.Module, x: Tensor) -> Tensor:
    module.weight.requires_grad_(False)
    return module(x)


def autocast(module: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return module(x)


def in_half(module: nn.Module, x: Tensor) -> Tensor:
    return module.bfloat16()(x.bfloat16())


def unbatched(module: nn.Module, x: Tensor) -> Tensor:
    return module(x[0])


def on_another_device(module: nn.Module, x: Tensor) -> Tensor:
    return torch.zeros_like(module.to("meta")(x.to("meta")), device="cpu")


def in_onednns_layout(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.to_mkldnn()).to_dense()


@pytest.mark.usefixtures("always")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "use",
    [
        without_gradients,
        in_inference,
        frozen,
        autocast,
        in_half,
        unbatched,
        on_another_device,
        in_onednns_layout,
        traced,
        scripted,
        compiled,
        symbolic,
        mapped,
        differentiated,
        forward_mode,
    ],
)
def test_elsewhere_it_is_the_stock_layer(
    use: Callable[[nn.Module, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, fast = twins(layer())
    x = torch.randn(4, CHANNELS, 2, 2)
    assert is_fast(fast(x))
    monkeypatch.setattr(depthwise, "PairedConvolution", None)
    assert torch.equal(use(fast, x), use(stock, x))


@pytest.mark.parametrize("shape", [(2, CHANNELS + 1, 2, 2), (CHANNELS,)], ids=str)
@pytest.mark.usefixtures("always")
def test_a_wrong_input_is_refused_as_by_the_stock_layer(shape: tuple[int, ...]) -> None:
    messages = []
    for module in twins(layer()):
        with pytest.raises(RuntimeError) as refused:
            module(torch.randn(shape))
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
