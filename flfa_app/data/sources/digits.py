"""The handwritten digits that scikit-learn brings."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from flfa_app.data.validation import Decoded, Source, reading

__all__ = ["find_digits"]

_CURE = "install scikit-learn again"


def find_digits(name: str, data_dir: str, image_size: int) -> Source:
    """Find the 1,797 digits of 8x8 pixels; their values are from 0 to 16."""
    # The file itself: importing scikit-learn takes ten times as long as reading it.
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise FileNotFoundError(f"scikit-learn, which has the digits, is gone; {_CURE}")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        raise FileNotFoundError(f"the digits are not in {file}; {_CURE}")
    return Source(str(file), _CURE, lambda: _read(file))


def _read(file: Path) -> Decoded:
    with reading(file, _CURE):
        table = np.loadtxt(file, delimiter=",")  # 64 pixels and the label, line by line
        images = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    # Every fifth image of each digit is for testing.
    test = np.zeros(len(labels), bool)
    test[np.argsort(labels, kind="stable")[4::5]] = True
    names = tuple(str(digit) for digit in range(10))
    return Decoded(images[~test], labels[~test], images[test], labels[test], names)
