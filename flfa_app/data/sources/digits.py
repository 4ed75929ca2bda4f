"""The handwritten digits that scikit-learn brings."""

from __future__ import annotations

import numpy as np

from flfa_app.data.decoded import Decoded, Source

__all__ = ["find_digits"]


def find_digits(name: str, data_dir: str, image_size: int) -> Source:
    """Find the 1,797 digits of 8x8 pixels; their values are from 0 to 16."""
    return Source("scikit-learn", "install scikit-learn again", _read)


def _read() -> Decoded:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target
    # Every fifth image of each digit is for testing.
    test = np.zeros(len(labels), bool)
    test[np.argsort(labels, kind="stable")[4::5]] = True
    names = tuple(str(name) for name in digits.target_names)
    return Decoded(images[~test], labels[~test], images[test], labels[test], names)
