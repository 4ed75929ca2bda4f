"""The autograd functions on their own, as in a project that copies the file."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clients.feedback import autograd
from clients.feedback.autograd import ConvFeedback, LinearFeedback

GEOMETRY = ((1, 1), (0, 0), (1, 1), 1)


@pytest.fixture
def copied(tmp_path: Path) -> ModuleType:
    """The file, copied somewhere else under another name."""
    path = shutil.copy(autograd.__file__, tmp_path / "copied.py")
    spec = importlib.util.spec_from_file_location("copied", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linear_pieces() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    return x, functional.linear(x.detach(), w), torch.randn(2, 4, dtype=torch.float64)


def test_the_file_works_on_its_own(copied: ModuleType) -> None:
    x, y, b = linear_pieces()
    copied.LinearFeedback.apply(x, y, b, None).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, b.sum(0).expand(3, 4), rtol=1e-14, atol=1e-15)
    assert copied.__all__ == ["ConvFeedback", "LinearFeedback", "scaled"]


def test_the_output_is_not_copied() -> None:
    x, y, b = linear_pieces()
    joined = LinearFeedback.apply(x, y, b, None)
    assert joined.data_ptr() == y.data_ptr()
    assert torch.equal(joined, y)
    assert not joined._is_view()  # or an in-place activation would be refused
    w = torch.randn(2, 2, 1, 1)
    images = torch.randn(1, 2, 3, 3, requires_grad=True)
    maps = ConvFeedback.apply(images, w, None, torch.ones(2, 2, 1, 1), None, *GEOMETRY)
    assert torch.equal(maps, functional.conv2d(images, w))
    assert not maps._is_view()


def test_the_scale_multiplies_the_feedback() -> None:
    x, y, b = linear_pieces()
    scale = torch.tensor([[2.0], [-3.0]], dtype=torch.float64)
    LinearFeedback.apply(x, y, b, scale).sum().backward()
    assert x.grad is not None
    expected = (2 * b[0] - 3 * b[1]).expand(3, 4)
    torch.testing.assert_close(x.grad, expected, rtol=1e-14, atol=1e-15)


def test_the_output_gets_its_own_gradient_untouched() -> None:
    x, y, b = linear_pieces()
    error = torch.randn_like(y)
    (dy,) = torch.autograd.grad(LinearFeedback.apply(x, y, b, None), y, error)
    assert torch.equal(dy, error)


def test_an_input_without_a_gradient_gets_none() -> None:
    x, y, b = linear_pieces()
    joined = LinearFeedback.apply(x.detach(), y, b, None)
    (dy,) = torch.autograd.grad(joined.sum(), y)
    assert torch.equal(dy, torch.ones_like(y))


def test_a_convolution_by_hand() -> None:
    """A 1x1 convolution is a product: the error 1 comes back as 2 * 5 = scale * B.

    The weight's gradient is the sum of four inputs of 3, the bias's counts them.
    """
    x = torch.full((1, 1, 2, 2), 3.0, requires_grad=True)
    w = torch.full((1, 1, 1, 1), 7.0, requires_grad=True)
    bias = torch.ones(1, requires_grad=True)
    b, scale = torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1, 1), 2.0)
    y = ConvFeedback.apply(x, w, bias, b, scale, *GEOMETRY)
    dx, dw, dbias = torch.autograd.grad(y.sum(), (x, w, bias))
    assert y.tolist() == [[[[22.0, 22.0], [22.0, 22.0]]]]
    assert dx.tolist() == [[[[10.0, 10.0], [10.0, 10.0]]]]
    assert dw.item() == 3.0 * 4
    assert dbias.tolist() == [4.0]


@pytest.mark.parametrize("required", [(0,), (1,), (0, 2)], ids=str)
def test_a_convolution_computes_only_the_required_gradients(
    required: tuple[int, ...],
) -> None:
    tensors = [torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1), torch.ones(1)]
    for index in required:
        tensors[index].requires_grad_()
    y = ConvFeedback.apply(*tensors, torch.ones(1, 1, 1, 1), None, *GEOMETRY)
    y.sum().backward()
    given = tuple(i for i, tensor in enumerate(tensors) if tensor.grad is not None)
    assert given == required
