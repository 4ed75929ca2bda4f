"""Evaluation of the global model: one forward pass over each test set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from clients.head import capture_features
from flfa_app.arrays import load_arrays
from flfa_app.config import RunConfig
from flfa_app.data.dataset import Pixels
from flfa_app.preflight import Prepared
from flfa_app.results.metrics import METRICS
from flfa_app.results.prediction_metrics import (
    Predictions,
    accuracy,
    feature_distances,
    macro_auc,
)
from flfa_app.results.records import Evaluation
from flfa_app.server.fused_model import FusedModel
from flfa_app.task import use_threads

__all__ = ["Evaluator", "evaluate"]

EVALUATION_BATCH = 512
TestSet = tuple[Tensor, Tensor]


class Evaluator:
    """Evaluates global models on the test sets of a run, possibly in another thread.

    Parameters
    ----------
    config : RunConfig
        The config of the run.
    prepared : Prepared
        Its model and its data set. The model's weights are overwritten.
    """

    def __init__(self, config: RunConfig, prepared: Prepared) -> None:
        self._config = config
        self._model = prepared.model.to(prepared.device)
        images = prepared.images

        def test_set(pixels: Pixels, labels: NDArray[np.int64]) -> TestSet:
            inputs, targets = images.tensor(pixels), torch.from_numpy(labels)
            return inputs.to(prepared.device), targets.to(prepared.device)

        self._test = test_set(images.test, images.test_labels)
        self._extra_tests = {
            name: test_set(*test) for name, test in images.extra_tests.items()
        }
        self._fused = FusedModel(self._model, self._test[0][:1])

    def evaluate(self, arrays: ArrayRecord) -> Evaluation:
        """Evaluate a global model."""
        use_threads(self._config)  # torch keeps the number for each thread
        load_arrays(self._model, arrays)
        return evaluate(self._fused.current(), *self._test, self._extra_tests)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    extra_tests: Mapping[str, TestSet] | None = None,
) -> Evaluation:
    """Evaluate a model; it is in eval mode afterwards.

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
        Its distances are those of the features that enter the head.
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
    # In float32 the probabilities of all confident predictions would be the same 1.
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
