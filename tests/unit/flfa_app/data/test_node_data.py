"""A node's own data: its labels become those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from PIL import Image

from flfa_app.data.dataset import DataDescription
from flfa_app.data.node_data import load_node_data
from tests.unit.flfa_app.data import write

RUN = DataDescription((100.0,), (50.0,), 28, ("cat", "dog", "owl"))
COLOUR_RUN = DataDescription(
    (1.0, 2.0, 3.0), (1.0, 1.0, 1.0), 16, ("cat", "dog", "owl")
)
DATA = write.arrays(9, 1, classes=3)
IMAGES = DATA["train_images"]


@pytest.mark.parametrize(
    "keys", [("train_images", "train_labels"), ("images", "labels")]
)
def test_npz(tmp_path: Path, keys: tuple[str, str]) -> None:
    content = dict(zip(keys, (IMAGES, DATA["train_labels"]), strict=True))
    path = write.npz(tmp_path / "mine.npz", content)
    images, labels = load_node_data(str(path), RUN)
    np.testing.assert_array_equal(images[..., 0], IMAGES)
    assert labels.tolist() == [0, 1, 2] * 3


def named_npz(path: Path, names: Any, **changes: Any) -> str:
    content = {"images": IMAGES[:3], "labels": np.array([0, 1, 1])} | changes
    return str(write.npz(path, content | {"class_names": np.array(names)}))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_npz_with_class_names(tmp_path: Path, kind: str) -> None:
    """Its labels 0, 1, 1 are owl, cat, cat: the run's 2, 0, 0."""
    names = np.array(["owl", "cat"]).astype(kind)
    path = named_npz(tmp_path / "mine.npz", names)
    assert load_node_data(path, RUN).labels.tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (
            ["owl", "fox"],
            {},
            r" has the class\(es\) fox; those of the run are cat, dog",
        ),
        (["owl"], {}, " is damaged: .*from 0 to 1; with 1 classes"),
        (["owl", "owl"], {}, " is damaged: .*class_names have owl more than once"),
        (["owl", "cat"], {"images": np.uint8(3)}, r"images have the shape \(\)"),
        (
            ["owl", "cat"],
            {"images": IMAGES[:0], "labels": np.array([], int)},
            " is damaged: there are no images",
        ),
        (
            ["owl", "cat"],
            {"labels": np.array([0, 1])},
            r"labels have the shape \(2,\) for 3 images",
        ),
        (
            ["owl", "cat"],
            {"labels": np.array([0, 1, -1])},
            "labels are from -1 to 1; with 2 classes",
        ),
    ],
)
def test_wrong_npz_with_class_names(
    tmp_path: Path, names: list[str], changes: dict[str, Any], message: str
) -> None:
    path = named_npz(tmp_path / "mine.npz", names, **changes)
    with pytest.raises(ValueError, match=rf"mine\.npz.*{message}"):
        load_node_data(path, RUN)


def named_split(labels: list[int]) -> Dataset:
    images = [Image.fromarray(x) for x in IMAGES[: len(labels)]]
    split = Dataset.from_dict({"image": images, "label": labels})
    return split.cast_column("label", ClassLabel(names=["owl", "cat"]))


@pytest.mark.parametrize("in_dict", [False, True])
def test_saved_dataset_with_class_names(tmp_path: Path, in_dict: bool) -> None:
    """Its labels 0, 1 are owl, cat: the run's 2, 0."""
    split = named_split([0, 1, 1, 0])
    dataset = DatasetDict({"train": split}) if in_dict else split
    dataset.save_to_disk(tmp_path / "mine")
    images, labels = load_node_data(str(tmp_path / "mine"), RUN)
    np.testing.assert_array_equal(images[..., 0], IMAGES[:4])
    assert labels.tolist() == [2, 0, 0, 2]


def test_wrong_saved_datasets(tmp_path: Path) -> None:
    """``datasets`` writes -1 for an image without a label."""
    named_split([0, -1]).save_to_disk(tmp_path / "a")
    with pytest.raises(ValueError, match=r"labels are from -1 to 0; with 2 classes"):
        load_node_data(str(tmp_path / "a"), RUN)
    DatasetDict({"test": named_split([0])}).save_to_disk(tmp_path / "b")
    with pytest.raises(ValueError, match=r"b is damaged: its splits are test, not tra"):
        load_node_data(str(tmp_path / "b"), RUN)


@pytest.mark.parametrize("inner", ["", "train/"])
def test_image_folder_with_some_classes(tmp_path: Path, inner: str) -> None:
    write.photographs(
        tmp_path,
        {f"{inner}{name}/{i}.jpg": (40, 30) for name in ("owl", "dog") for i in (1, 2)},
    )
    images, labels = load_node_data(str(tmp_path), COLOUR_RUN)
    assert images.shape == (4, 16, 16, 3)
    assert labels.tolist() == [1, 1, 2, 2]


def test_image_folder_with_empty_classes(tmp_path: Path) -> None:
    """One image of any class is enough."""
    for name in ("cat", "dog", "owl"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no image .*at least one"):
        load_node_data(str(tmp_path), COLOUR_RUN)
    write.photographs(tmp_path, {"dog/1.jpg": (40, 30)})
    images, labels = load_node_data(str(tmp_path), COLOUR_RUN)
    assert images.shape == (1, 16, 16, 3)
    assert labels.tolist() == [1]


def test_image_folder_with_an_unknown_class(tmp_path: Path) -> None:
    write.photographs(tmp_path, {"fox/1.jpg": (20, 20), "cat/1.jpg": (20, 20)})
    with pytest.raises(
        ValueError, match=r"class\(es\) fox; those of the run are cat, d"
    ):
        load_node_data(str(tmp_path), COLOUR_RUN)


def test_other_shapes_do_not_fit_the_model(tmp_path: Path) -> None:
    """An intact file is not called damaged."""
    path = write.npz(tmp_path / "a.npz", write.arrays(channels=3, size=32))
    with pytest.raises(
        ValueError,
        match=r"a\.npz does not fit .* 32x32 with 3 channel\(s\), the model .*28x28 "
        "with 1; save them in grey",
    ) as caught:
        load_node_data(str(path), RUN)
    assert "damaged" not in str(caught.value)
    floats = DATA | {"train_images": IMAGES / 255}
    path = write.npz(tmp_path / "floats.npz", floats)
    with pytest.raises(
        ValueError, match=r"floats\.npz are of type float64; they must be uint8"
    ) as caught:
        load_node_data(str(path), RUN)
    assert "damaged" not in str(caught.value)


def test_cached_images_of_a_grey_run_do_not_fit_a_run_in_colour(tmp_path: Path) -> None:
    content = {"images": IMAGES[:3], "labels": np.array([0, 1, 2])}
    path = str(write.npz(tmp_path / "mine.npz", content))
    assert load_node_data(path, RUN).images.shape == (3, 28, 28, 1)
    colour = replace(RUN, mean=(1.0, 2.0, 3.0), deviation=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"1 channel.*28x28 with 3; save .*in colour"):
        load_node_data(path, colour)


def test_wrong_paths_and_labels(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "b.npz", write.arrays(classes=4))
    with pytest.raises(
        ValueError, match=r"b\.npz.*labels are from 0 to 3; with 3 class"
    ):
        load_node_data(str(path), RUN)
    with pytest.raises(
        FileNotFoundError, match="nowhere is missing; this node's dataset-path must be"
    ):
        load_node_data(str(tmp_path / "nowhere"), RUN)
    (tmp_path / "text").touch()
    with pytest.raises(FileNotFoundError, match=r"text is not an \.npz file, a folder"):
        load_node_data(str(tmp_path / "text"), RUN)
    (tmp_path / "d.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"d\.npz is damaged: it has 2 bytes"):
        load_node_data(str(tmp_path / "d.npz"), RUN)
