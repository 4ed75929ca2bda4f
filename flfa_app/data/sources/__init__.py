"""Where each data set comes from; one file for each format.

A source takes the name of the data set, the folder that was given (or ``""``) and the
size asked for (0: as it is), and says where the data is and how to read it. Only what
is not there is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable

from flfa_app.data.sources.cifar import find_cifar
from flfa_app.data.sources.digits import find_digits
from flfa_app.data.sources.fashion import find_fashion
from flfa_app.data.sources.files import find_files
from flfa_app.data.sources.imagenet import find_imagenet100
from flfa_app.data.sources.medmnist import MEDMNIST, find_medmnist
from flfa_app.data.validation import Source

__all__ = ["DATASETS"]

DATASETS: dict[str, Callable[[str, str, int], Source]] = {
    "digits": find_digits,
    **dict.fromkeys(MEDMNIST, find_medmnist),
    "fashionmnist": find_fashion,
    "cifar10": find_cifar,
    "cifar100": find_cifar,
    "imagenet100": find_imagenet100,
    "files": find_files,
}
