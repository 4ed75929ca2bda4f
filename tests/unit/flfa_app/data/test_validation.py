"""Arrays that are not a data set are refused with location, problem and cure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.data.declaration import DatasetReader, RawDataset
from flfa_app.data.loading import load_dataset
from flfa_app.data.validation import number_classes, report_damage, validate_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import COLOUR, GREY, TEN

TRAIN, TEST = GREY["train_images"], GREY["test_images"]
LABELS = GREY["train_labels"]


def validate(**changes: Any) -> RawDataset:
    """Validate 30 training and 20 test images of 28x28 pixels, with changes."""
    test_labels = GREY["test_labels"]
    dataset = RawDataset(TRAIN, LABELS, TEST, test_labels, tuple(TEN))
    changed = RawDataset(**vars(dataset) | changes)
    return validate_dataset(changed, DatasetReader("a file", "a cure", lambda: changed))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "floats": (
        {"train": TRAIN / 255},
        "training images are of type float64, not uint8",
    ),
    "not square": ({"train": TRAIN[:, :20]}, r"shape \(30, 20, 28, 1\)"),
    "flat": ({"train": TRAIN.reshape(30, -1)}, r"shape \(30, 784\); it must be"),
    "no channels": ({"train": TRAIN[..., None][..., :0]}, r"shape \(30, 28, 28, 0\)"),
    "no images": ({"test": TEST[:0]}, "there are no test images"),
    "missing labels": (
        {"train_labels": LABELS[:-1]},
        r"training labels have the shape \(29,\) for 30 images",
    ),
    "several labels": ({"train_labels": np.zeros((30, 14))}, r"shape \(30, 14\)"),
    "halves": ({"train_labels": LABELS + 0.5}, "labels .* not whole numbers"),
    "nan": ({"test_labels": np.full(20, np.nan)}, "test labels .* not whole numbers"),
    "texts": ({"test_labels": np.array(["a"] * 20)}, "<U1.* not whole numbers"),
    "negative": (
        {"train_labels": LABELS.astype(int) - 1},
        "training labels are from -1 to 8; with 10 classes .* 0 to 9",
    ),
    "too large": ({"train_labels": LABELS + 1}, "labels are from 1 to 10; with 10 "),
    "another size": (
        {"test": TEST[:, :14, :14]},
        "training images are 28x28x1, the test images 14x14x1",
    ),
    "another size of a further test set": (
        {"extra_tests": {"new": (TEST[:, :14, :14], LABELS[:20])}},
        "training images are 28x28x1, new 14x14x1",
    ),
    "labels of a further test set": (
        {"extra_tests": {"new": (TEST, LABELS)}},
        r"the new have the shape \(30,\) for 20 images",
    ),
    "a short column": (
        {"columns": {"writer": np.arange(29)}},
        "column writer has 29 values for 30 training images",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_refused(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(ValueError, match=f"^a file is damaged: .*{message}.*; a cure$"):
        validate(**changes)


def test_arrays_get_one_shape_and_type() -> None:
    dataset = validate(train_labels=LABELS[:, None].astype(float))
    assert dataset.train.shape == (30, 28, 28, 1)
    assert dataset.train_labels.dtype == np.int64
    assert dataset.train_labels.tolist() == LABELS.tolist()


def test_numbered_classes_are_at_most_the_training_images() -> None:
    """One absurd label would otherwise fill the memory with names."""
    labels = np.array([0, 1, 2])
    assert number_classes(labels, np.array([1])) == ("0", "1", "2")
    assert number_classes(np.array([0, 2, 0]), np.array([1])) == ("0", "1", "2")
    for largest in (3, 200_000_000_000):
        with pytest.raises(
            ValueError, match=f"a label is {largest}, .* 3 training images; number the"
        ):
            number_classes(labels, np.array([largest]))
    with pytest.raises(ValueError, match="no training labels or no test labels"):
        number_classes(labels, labels[:0])
    with pytest.raises(ValueError, match=r"float64.* not whole numbers"):
        number_classes(np.array([np.inf]), labels)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (KeyError("a key"), "X is damaged: a key; cure"),
        (EOFError(), "X is damaged: EOFError; cure"),
        (MemoryError(), "X is damaged: it asks for more memory than this machine has;"),
        (OSError("bad content"), "X is damaged: bad content; cure"),
        (OSError(5, "I/O error"), r"X cannot be read: \[Errno 5\] I/O error; cure"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_libraries_get_location_and_cure(
    problem: Exception, text: str
) -> None:
    with pytest.raises(ValueError, match=text), report_damage("X", "cure"):
        raise problem


def test_errors_that_name_a_file_stay() -> None:
    denied = PermissionError(13, "denied", "a file")
    with pytest.raises(PermissionError, match="a file"), report_damage("X", "cure"):
        raise denied


def overwrite(path: Path) -> None:
    """Overwrite a part in the middle, where the content is."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = b"\xa5" * 64
    path.write_bytes(content)


def error_page(path: Path) -> None:
    path.write_text("<html>503 Service Unavailable</html>")


@pytest.mark.parametrize("damage", [write.cut, overwrite, error_page])
@pytest.mark.parametrize("kind", ["npz", "idx.gz", "cifar.tar.gz", "png"])
def test_damaged_files_are_named_with_their_cure(
    tmp_path: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    if kind == "npz":
        name, path = "organcmnist", write.npz(tmp_path / "organcmnist.npz", GREY)
        cure = "download it again from https://zenodo"
    elif kind == "idx.gz":
        name, path = "fashionmnist", write.fashion(tmp_path, GREY)[0]
        cure = "download it again from https://github.com/zalando"
    elif kind == "cifar.tar.gz":
        name = "cifar10"
        path = write.cifar(tmp_path, name, COLOUR, archive=True)
        cure = "again from https://www.cs.toronto"
    else:
        name = "files"
        write.image_folder(tmp_path, COLOUR, TEN)
        path = tmp_path / "train" / TEN[0] / "0000.png"
        cure = "delete it, or save it again"
    damage(path)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*damaged") as caught:
        load_dataset(name, str(tmp_path))
    assert cure in str(caught.value)
