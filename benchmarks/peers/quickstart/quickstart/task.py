"""Data loading and training of a client."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from quickstart.given import SameOrder, partition, settings

__all__ = ["Batches", "load_data", "train"]

Batches = DataLoader[tuple[torch.Tensor, ...]]


def load_data(folder: str, client: int, seed: int) -> Batches:
    """Return a loader of a client's images, shuffled anew in each epoch."""
    dataset = partition(folder, client)
    return DataLoader(
        dataset,
        batch_size=settings(folder)["batch-size"],
        sampler=SameOrder(len(dataset), seed),
        # Otherwise each epoch takes a number that dropout is about to draw.
        generator=torch.Generator(),
    )


def train(
    net: nn.Module,
    trainloader: Batches,
    epochs: int,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> float:
    """Train the model on the training set; return the mean loss of a batch."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))
