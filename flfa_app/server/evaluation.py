"""What the global model is worth: one forward pass over each test set."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.head import capture_features
from flfa_app.results.metrics import METRICS
from flfa_app.results.prediction_metrics import (
    Predictions,
    accuracy,
    feature_distances,
    macro_auc,
)
from flfa_app.results.records import Evaluation

__all__ = ["evaluate"]

EVALUATION_BATCH = 512
TestSet = tuple[Tensor, Tensor]


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    extra_tests: Mapping[str, TestSet] | None = None,
) -> Evaluation:
    """Measure a model; leaves it in eval mode.

    Parameters
    ----------
    model : nn.Module
        A classifier whose last child with parameters is its head.
    images, labels : Tensor
        The test set, on the model's device.
    extra_tests : Mapping[str, tuple[Tensor, Tensor]], optional
        Images and labels of further test sets, of which only the accuracy is measured.

    Returns
    -------
    Evaluation
        The distances are those of the features that the head sees.
    """
    model.eval()
    loss = 0.0
    all_logits: list[Tensor] = []
    all_features: list[Tensor] = []
    with capture_features(model) as seen:
        for batch, targets in _batches(images, labels):
            logits = model(batch)
            loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
            all_logits.append(logits.cpu())
            all_features.append(seen.pop().flatten(1).cpu())
    logits, truth = torch.cat(all_logits), labels.cpu().numpy()
    # In float32 the probabilities of samples it is sure of would all be the same 1.
    probabilities = logits.double().softmax(1).numpy()
    features = torch.cat(all_features).numpy()
    predictions = Predictions(logits.numpy(), probabilities, features, truth)
    distances = feature_distances(features, truth)
    return Evaluation(
        accuracy=accuracy(predictions.logits, truth),
        loss=loss / len(labels),
        auc=macro_auc(probabilities, truth),
        intra_class=distances.intra,
        inter_class=distances.inter,
        separability=distances.separability,
        extra_accuracy={
            name: _accuracy(model, *test) for name, test in (extra_tests or {}).items()
        },
        further={
            spec.key: spec.measure(predictions)
            for spec in METRICS.values()
            if spec.measure is not None
        },
    )


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    logits = [model(batch).cpu() for batch, _ in _batches(images, labels)]
    return accuracy(torch.cat(logits).numpy(), labels.cpu().numpy())


def _batches(images: Tensor, labels: Tensor) -> zip[tuple[Tensor, Tensor]]:
    return zip(
        torch.split(images, EVALUATION_BATCH),
        torch.split(labels, EVALUATION_BATCH),
        strict=True,
    )
