"""The images, and who holds which of them.

The libraries behind a data set are imported when it is loaded: all of them together
take longer than the first round, in every process that serves clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["DATASETS", "PARTITIONERS", "Images", "load_images", "partition_indices"]

PARTITIONERS = ("dirichlet", "iid")
# flwr-datasets draws eleven times for a seed before it gives up.
SEEDS_TO_TRY = 20


@dataclass(frozen=True)
class Images:
    """A data set in memory: normalised images, labels, names of the classes."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.train.shape[1]

    @property
    def size(self) -> int:
        """Width and height of an image."""
        return self.train.shape[-1]


@cache
def load_images(name: str, data_dir: str = "") -> Images:
    """Load a data set; once in a process."""
    return DATASETS[name](name, data_dir)


@cache
def partition_indices(
    labels: tuple[int, ...],
    num_partitions: int,
    *,
    partitioner: str,
    beta: float,
    min_size: int,
    seed: int,
) -> tuple[npt.NDArray[np.int64], ...]:
    """Distribute the training images over the clients; once in a process.

    Parameters
    ----------
    labels : tuple[int, ...]
        The label of each training image.
    num_partitions : int
        Number of clients.
    partitioner : str
        ``"dirichlet"`` (paper: the share of every class is drawn from Dir(beta), a
        client that has its fair share gets no more) or ``"iid"``.
    beta : float
        Small: clients with few classes; large: like iid.
    min_size : int
        No client has less; drawn again until this holds.
    seed : int
        Decides the partition together with the arguments above, nothing else does.

    Raises
    ------
    ValueError
        If no draw gives every client ``min_size`` images.
    """
    if num_partitions * min_size > len(labels):
        raise ValueError(
            f"min-partition-size is {min_size}: {num_partitions} clients would need "
            f"{num_partitions * min_size} images, there are {len(labels)}; lower it or "
            "simulate fewer nodes"
        )
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

    table = Dataset.from_dict({"label": labels, "index": range(len(labels))})
    if partitioner == "iid":
        dealer = IidPartitioner(num_partitions)
        # It deals out slices: their order must not be that of the file.
        dealer.dataset = table.shuffle(seed)
        return _indices(dealer, num_partitions)
    for attempt in range(SEEDS_TO_TRY):
        drawer = DirichletPartitioner(
            num_partitions=num_partitions,
            partition_by="label",
            alpha=beta,
            min_partition_size=min_size,
            self_balancing=True,
            seed=int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]),
        )
        drawer.dataset = table
        try:
            with warnings.catch_warnings():
                # It warns at every draw that is too small; the last one is an error.
                warnings.simplefilter("ignore", UserWarning)
                return _indices(drawer, num_partitions)
        except ValueError:
            continue
    raise ValueError(
        f"no Dirichlet draw with dirichlet-beta {beta:g} gives each of "
        f"{num_partitions} clients min-partition-size {min_size} images; lower "
        "min-partition-size, raise dirichlet-beta or simulate fewer nodes"
    )


def _indices(
    partitioner: Any, num_partitions: int
) -> tuple[npt.NDArray[np.int64], ...]:
    parts = (partitioner.load_partition(i) for i in range(num_partitions))
    return tuple(np.array(part["index"], np.int64) for part in parts)


def _digits(name: str, data_dir: str) -> Images:
    """Return the 1,797 handwritten digits of 8x8 pixels that scikit-learn brings."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images / 16, digits.target
    # Every fifth image of each digit is for testing.
    test = np.zeros(len(labels), bool)
    test[np.argsort(labels, kind="stable")[4::5]] = True
    names = [str(name) for name in digits.target_names]
    return _images(images[~test], labels[~test], images[test], labels[test], names)


def _medmnist(name: str, data_dir: str) -> Images:
    """Return a MedMNIST set from ``<data_dir>/<name>.npz``, the official 28x28 file."""
    import medmnist

    info = medmnist.INFO[name]
    folder = Path(data_dir or medmnist.dataset.DEFAULT_ROOT).expanduser()
    path = folder / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing; download it from {info['url']} and set data-dir to "
            "its folder"
        )
    with np.load(path) as file:
        images, labels, test, test_labels = (
            file[key]
            for key in ("train_images", "train_labels", "test_images", "test_labels")
        )
    names = [info["label"][str(i)] for i in range(len(info["label"]))]
    return _images(images / 255, labels, test / 255, test_labels, names)


def _images(
    train: npt.NDArray[Any],
    train_labels: npt.NDArray[Any],
    test: npt.NDArray[Any],
    test_labels: npt.NDArray[Any],
    class_names: list[str],
) -> Images:
    """Normalise by mean and deviation of each channel; put the channels first."""
    train, test = (
        (images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2))
        for images in (train, test)
    )
    mean = train.mean((0, 2, 3), keepdims=True)
    deviation = train.std((0, 2, 3), keepdims=True)

    def normalised(images: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(((images - mean) / deviation).astype(np.float32))

    return Images(
        train=normalised(train),
        train_labels=torch.from_numpy(train_labels.reshape(-1).astype(np.int64)),
        test=normalised(test),
        test_labels=torch.from_numpy(test_labels.reshape(-1).astype(np.int64)),
        class_names=tuple(class_names),
    )


# The two-dimensional MedMNIST sets with one label an image.
_MEDMNIST = (
    "pathmnist",
    "dermamnist",
    "octmnist",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
    "bloodmnist",
    "tissuemnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
)
DATASETS: dict[str, Callable[[str, str], Images]] = {
    "digits": _digits,
    **dict.fromkeys(_MEDMNIST, _medmnist),
}
