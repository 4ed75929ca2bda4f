"""The model and the data."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST_SIZE = 360


class DigitsTransformer(nn.Module):
    """Reads an 8x8 image as a sentence of 8 rows."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(block, num_layers=2)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        words = self.embed(images) + self.position
        return self.head(self.encoder(words).mean(dim=1))


def load_test() -> tuple[Tensor, Tensor]:
    """Return the images and labels that no client has."""
    images, labels = _shuffled_digits()
    return images[:TEST_SIZE], labels[:TEST_SIZE]


def load_shard(partition: int, partitions: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one client, which has few of some classes."""
    images, labels = (part[TEST_SIZE:] for part in _shuffled_digits())
    draw = np.random.default_rng(seed)
    owner = np.empty(len(labels), dtype=int)
    for digit in range(10):
        shares = draw.dirichlet([0.5] * partitions)
        mine = np.flatnonzero(labels == digit)
        owner[mine] = draw.choice(partitions, size=len(mine), p=shares)
    chosen = torch.from_numpy(owner == partition)
    return images[chosen], labels[chosen]


def _shuffled_digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32)
    return images, torch.tensor(digits.target[order])
