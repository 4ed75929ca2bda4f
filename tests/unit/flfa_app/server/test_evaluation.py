"""Evaluation of the global model, against a plain loop over the test set."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from flfa_app.models import build_model
from flfa_app.results.prediction_metrics import feature_distances
from flfa_app.server import evaluation
from flfa_app.server.evaluation import evaluate

CLASSES = 4


def data(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 1, 8, 8, generator=numbers)
    return images, torch.randint(CLASSES, (samples,), generator=numbers)


def network(name: str = "cnn", norm: str = "batch") -> nn.Module:
    return build_model(name, channels=1, size=8, classes=CLASSES, norm=norm, seed=0)


@torch.inference_mode()
def accuracy_and_loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy and loss of a plain loop."""
    model.eval()
    right, loss = 0, 0.0
    for start in range(0, len(y), 512):
        logits, targets = model(x[start : start + 512]), y[start : start + 512]
        right += int((logits.argmax(1) == targets).sum())
        loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
    return right / len(y), loss / len(y)


@pytest.mark.parametrize("samples", [1, 512, 513])
def test_accuracy_and_loss_have_the_bits_of_a_plain_loop(samples: int) -> None:
    model, (images, labels) = network(), data(samples)
    figures = evaluate(model, images, labels)
    expected = accuracy_and_loss(model, images, labels)
    assert (figures.accuracy, figures.loss) == expected


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_auc_and_distances_are_those_of_logits_and_penultimate_features(
    name: str,
) -> None:
    """With the head's last layer applied by hand to the features."""
    model, (images, labels) = network(name), data(40)
    figures = evaluate(model, images, labels)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    caught: list[Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        logits = model(images)
    hook.remove()
    probabilities = functional.softmax(logits.double(), 1).numpy()
    auc = roc_auc_score(labels.numpy(), probabilities, multi_class="ovr")
    assert figures.auc == pytest.approx(auc, abs=1e-12)
    distances = feature_distances(caught[0].numpy(), labels.numpy())
    measured = (figures.intra_class, figures.inter_class, figures.separability)
    assert measured == pytest.approx(tuple(distances), rel=1e-5)


def test_the_batch_size_has_no_influence(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (images, labels) = network(), data(100)
    whole = evaluate(model, images, labels)
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 7)
    parts = evaluate(model, images, labels)
    for field in fields(whole):
        expected = getattr(whole, field.name)
        assert getattr(parts, field.name) == pytest.approx(expected, rel=1e-5)


def test_one_forward_pass_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 10)
    model, sizes = network(), []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    evaluate(model, *data(25))
    assert sizes == [10, 10, 5]


def test_extra_test_sets_have_their_own_accuracy() -> None:
    model = network()
    extra = {"shifted": data(30, seed=1), "other": data(600, seed=2)}
    figures = evaluate(model, *data(20), extra)
    expected = {k: accuracy_and_loss(model, *test)[0] for k, test in extra.items()}
    assert figures.extra_accuracy == expected
    assert replace(figures, extra_accuracy={}) == evaluate(model, *data(20))


def test_the_model_is_unchanged() -> None:
    """No hook is left behind, and BatchNorm has seen nothing."""
    model = network()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    evaluate(model, *data(20))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_confident_predictions_are_distinguished() -> None:
    """In float32 a softmax of logits 20 and 30 apart is 1 both times.

    Sample 0 (class 0, margin 30) and sample 1 (class 1, margin 20 towards class 0)
    would tie and give 0.5; the probabilities of class 0 are different: area 1.
    """

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(1, 1, bias=False)
            self.head = nn.Linear(1, 2, bias=False)
            with torch.no_grad():
                self.body.weight.fill_(1)
                self.head.weight.copy_(torch.tensor([[1.0], [0.0]]))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.body(x))
            return logits

    inputs, labels = torch.tensor([[30.0], [20.0]]), torch.tensor([0, 1])
    assert inputs.sigmoid()[0] == inputs.sigmoid()[1] == 1
    assert evaluate(Fixed(), inputs, labels).auc == 1


def test_a_model_that_is_not_finite_is_evaluated() -> None:
    model = network()
    with torch.no_grad():
        model.get_submodule("conv3").weight.fill_(math.nan)
    figures = evaluate(model, *data(20))
    assert figures.auc == 0.5
    assert math.isnan(figures.separability)
