"""The handwritten digits that are part of scikit-learn."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from flfa_app.data.declaration import DatasetReader, DatasetSource, RawDataset
from flfa_app.data.validation import report_damage

_CURE = "install scikit-learn again"


class Digits(DatasetSource):
    """The digits of 8x8 pixels, with values from 0 to 16."""

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find scikit-learn's file."""
        # Importing scikit-learn takes ten times as long as reading the file.
        package = find_spec("sklearn")
        if package is None or package.origin is None:
            raise FileNotFoundError(
                f"scikit-learn, which contains the digits, is missing; {_CURE}"
            )
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if not file.is_file():
            raise FileNotFoundError(f"the digits are not in {file}; {_CURE}")
        return DatasetReader(str(file), _CURE, partial(_read, file))


def _read(file: Path) -> RawDataset:
    with report_damage(file, _CURE):
        table = np.loadtxt(file, delimiter=",")  # a row: 64 pixels and the label
        images = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    # Every fifth image of each digit is a test image.
    test = np.zeros(len(labels), bool)
    test[np.argsort(labels, kind="stable")[4::5]] = True
    names = tuple(str(digit) for digit in range(10))
    return RawDataset(images[~test], labels[~test], images[test], labels[test], names)


SOURCES = (
    Digits(
        name="digits",
        display_name="digits",
        train_images=1438,
        test_images=359,
        image_size=8,
        channels=1,
        classes=10,
    ),
)
