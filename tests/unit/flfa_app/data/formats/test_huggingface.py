from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from datasets import Image as ImageColumn
from PIL import Image

from flfa_app.data.formats.huggingface import decode_splits
from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import COLOUR, GREY, HUNDRED, TEN, assert_same


def refuse(folder: Path, message: str) -> None:
    """Check the error text, which names the folder and the cure."""
    pattern = rf"{re.escape(str(folder))} is damaged: .*{message}.*; write it again"
    with pytest.raises(ValueError, match=pattern):
        load_dataset("files", str(folder))


def test_grey_images_with_class_names(tmp_path: Path) -> None:
    write.saved(tmp_path / "own", GREY, names=TEN)
    dataset = load_dataset("files", str(tmp_path / "own"))
    assert_same(dataset, GREY)
    assert dataset.class_names == tuple(TEN)


@pytest.mark.parametrize(
    ("name", "folder", "data", "columns"),
    [
        ("cifar10", "cifar10", COLOUR, ("img", "label")),
        ("cifar100", "", HUNDRED, ("img", "fine_label")),
    ],
)
def test_named_data_sets(
    tmp_path: Path,
    name: str,
    folder: str,
    data: write.Arrays,
    columns: tuple[str, str],
) -> None:
    """In ``<name>/`` of ``data-dir``, or in ``data-dir`` itself."""
    write.saved(tmp_path / "data" / folder, data, columns=columns)
    assert_same(load_dataset(name, str(tmp_path / "data")), data)


def test_columns(tmp_path: Path) -> None:
    """Texts and whole numbers without missing values."""
    writers, wards = ["eve", "bob", "eve"] * 10, list(range(30))
    notes = ["a", None, "b"] * 10
    folder = write.saved(
        tmp_path / "own",
        GREY,
        writer=writers,
        ward=wards,
        note=notes,
        weight=[0.5] * 30,
    )
    columns = load_dataset("files", str(folder)).columns
    assert {name: x.tolist() for name, x in columns.items()} == {
        "writer": writers,
        "ward": wards,
    }


def split(names: list[str], labels: list[int]) -> Dataset:
    images = [Image.fromarray(x) for x in GREY["train_images"][: len(labels)]]
    table = Dataset.from_dict({"image": images, "label": labels})
    return table.cast_column("label", ClassLabel(names=names))


def save(folder: Path, **splits: Dataset) -> Path:
    DatasetDict(splits).save_to_disk(folder)
    return folder


def test_test_split_with_another_order_of_classes(tmp_path: Path) -> None:
    """The test images are dog, dog, cat: 1, 1, 0 in the training split's order."""
    train, test = split(["cat", "dog"], [0, 1]), split(["dog", "cat"], [0, 0, 1])
    folder = save(tmp_path / "own", train=train, test=test)
    dataset = load_dataset("files", str(folder))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 1]
    assert dataset.test_labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        (["owl", "cat"], [0, 1], r"class\(es\) owl; those of its training split are c"),
        (["dog", "cat"], [0, -1], "test labels are from -1 to 0; with 2 classes"),
    ],
)
def test_wrong_test_split(
    tmp_path: Path, names: list[str], labels: list[int], message: str
) -> None:
    train = split(["cat", "dog"], [0, 1])
    refuse(save(tmp_path / "own", train=train, test=split(names, labels)), message)


def test_wrong_columns_and_splits(tmp_path: Path) -> None:
    folder = write.saved(tmp_path / "a", GREY, columns=("picture", "label"))
    refuse(folder, "columns are picture, label; one must be called image or img")
    refuse(folder / "train", "it is a single split; train and test are needed")
    good = split(["cat"], [0])
    refuse(save(tmp_path / "b", train=good, dev=good), "its splits are train, dev;")
    with pytest.raises(ValueError, match="a split is empty"):
        decode_splits({"train": good, "test": good.select([])}, None)
    texts = good.remove_columns("label").add_column("label", ["cat"])
    refuse(save(tmp_path / "d", train=texts, test=texts), "make it a ClassLabel with")
    four = split(["a", "b", "c", "d"], [0])
    folder = save(tmp_path / "cifar10", train=four, test=four)
    with pytest.raises(
        ValueError, match="cifar10 is damaged: it has 4 classes, not 10"
    ):
        load_dataset("cifar10", str(tmp_path))


def test_absurd_label_does_not_fill_the_memory(tmp_path: Path) -> None:
    labels = GREY["train_labels"].astype(np.int64)
    labels[7] = 200_000_000_000
    folder = write.saved(tmp_path / "own", GREY | {"train_labels": labels})
    refuse(folder, "a label is 200000000000, .* 30 training images")


def test_damaged_files(tmp_path: Path) -> None:
    folder = write.saved(tmp_path / "own", GREY)
    (arrow,) = (folder / "test").glob("*.arrow")
    content = arrow.read_bytes()
    arrow.unlink()
    refuse(folder, r"\.arrow is missing")
    arrow.write_bytes(content)
    write.cut(next((folder / "train").glob("*.arrow")))
    refuse(folder, "")
    (folder / "train" / "state.json").write_text("[]")
    refuse(folder, "")


def save_images(folder: Path, images: list[Any]) -> Path:
    table = Dataset.from_dict({"image": images, "label": [0] * len(images)})
    table = table.cast_column("image", ImageColumn())
    return save(folder, train=table, test=table)


def test_null_image(tmp_path: Path) -> None:
    images = [Image.fromarray(GREY["train_images"][0]), None]
    refuse(save_images(tmp_path / "own", images), "image 1 is null; every row needs an")


def test_image_with_too_many_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [Image.new("L", (30, 30)), Image.new("L", (50, 50))]
    folder = save_images(tmp_path / "own", images)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    refuse(folder, "image 1 has too many pixels")
