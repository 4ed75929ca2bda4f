"""Whether two arms have done the same: what their weights show."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from benchmarks.peers.work import Work
from flfa_app.server.evaluation import evaluate
from flfa_app.task import images_of, model_of

__all__ = ["distance", "final_accuracy"]

# Images for BatchNorm's statistics, and how many of them at a time.
SAMPLE, BATCH = 1024, 512


def distance(work: Work, weights: Path, base: Path) -> float:
    """Return how far two models are apart, measured by how far the second has come.

    0: the same; 1.4: two trainings that have nothing to do with each other. Buffers do
    not count: not all tools average them.
    """
    first, second = load_file(weights), load_file(base)
    start = load_file(work.folder / "initial.safetensors")
    names = [name for name, _ in model_of(work.config).named_parameters()]
    apart = torch.cat([(first[name] - second[name]).flatten() for name in names])
    way = torch.cat([(second[name] - start[name]).flatten() for name in names])
    return float(apart.double().norm() / way.double().norm())


def final_accuracy(work: Work, weights: Path) -> float:
    """Return the accuracy on the test images.

    BatchNorm's statistics are taken anew from training images: pfl does not average
    them, and an average of a few clients after a few rounds is not worth much.

    Raises
    ------
    RuntimeError
        If the training has diverged: not a number is not computed at the same speed.
    """
    images = images_of(work.config)
    model = model_of(work.config)
    model.load_state_dict(load_file(weights))
    if not all(p.isfinite().all() for p in model.parameters()):
        raise RuntimeError(f"the weights in {weights} are not finite; use fewer rounds")
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
    if norms:
        with torch.no_grad():
            for start in range(0, SAMPLE, BATCH):
                model(images.tensor(images.train[start : start + BATCH]))
    test, labels = images.tensor(images.test), torch.from_numpy(images.test_labels)
    return float(evaluate(model, test, labels).accuracy)
