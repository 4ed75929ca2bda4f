"""A label means the class of its name, wherever that class stands in a list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from PIL import Image

from flfa_app.data.dataset import DataDescription
from flfa_app.data.loading import load_dataset
from flfa_app.data.node_data import load_node_data
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.test_formats import photographs

RUN = DataDescription((100.0,), (50.0,), 28, ("cat", "dog", "owl"))
PIXELS = write.arrays(3, 1)["train_images"]


def own_archive(path: Path, names: np.ndarray) -> str:
    content = {"images": PIXELS, "labels": np.array([0, 1, 1]), "class_names": names}
    return str(write.npz(path, content))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_an_archive_of_a_node_goes_by_its_class_names(
    tmp_path: Path, kind: str
) -> None:
    """Its 0, 1, 1 are owl, cat, cat: the run's 2, 0, 0."""
    path = own_archive(tmp_path / "mine.npz", np.array(["owl", "cat"]).astype(kind))
    assert load_node_data(path, RUN).labels.tolist() == [2, 0, 0]


def test_an_archive_of_a_node_with_a_class_that_the_run_has_not(tmp_path: Path) -> None:
    path = own_archive(tmp_path / "mine.npz", np.array(["owl", "fox"]))
    with pytest.raises(
        ValueError,
        match=r"mine\.npz has the class\(es\) fox; those of the run are cat, dog, owl;",
    ):
        load_node_data(path, RUN)


def test_an_archive_of_a_node_with_a_label_that_has_no_name(tmp_path: Path) -> None:
    path = own_archive(tmp_path / "mine.npz", np.array(["owl"]))
    with pytest.raises(ValueError, match=r"mine\.npz is .*from 0 to 1; with 1 classes"):
        load_node_data(path, RUN)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.uint8(3), [0, 1], r"images have the shape \(\)"),
        (PIXELS[:0], [], "there are no images"),
        (PIXELS, [0, 1], r"labels have the shape \(2,\) for 3 images"),
        (PIXELS, [0, 1, -1], "labels are from -1 to 1; with 2 classes"),
    ],
)
def test_an_archive_of_a_node_with_class_names_is_checked_like_others(
    tmp_path: Path, images: np.ndarray, labels: list[int], message: str
) -> None:
    names = np.array(["owl", "cat"])
    content = {"images": images, "labels": np.array(labels), "class_names": names}
    path = write.npz(tmp_path / "mine.npz", content)
    with pytest.raises(ValueError, match=rf"mine\.npz is damaged: .*{message}"):
        load_node_data(str(path), RUN)


def test_one_name_for_two_classes(tmp_path: Path) -> None:
    path = own_archive(tmp_path / "mine.npz", np.array(["owl", "owl"]))
    with pytest.raises(
        ValueError, match=r"mine\.npz is .*class_names have owl more than once"
    ):
        load_node_data(path, RUN)


def split(names: list[str], labels: list[int]) -> Dataset:
    pictures = [Image.fromarray(x) for x in PIXELS[: len(labels)]]
    table = Dataset.from_dict({"image": pictures, "label": labels})
    return table.cast_column("label", ClassLabel(names=names))


def test_a_test_split_that_counts_its_classes_in_another_order(tmp_path: Path) -> None:
    """The test images are dog, dog, cat: 1, 1, 0 in the training split's order."""
    DatasetDict(
        train=split(["cat", "dog"], [0, 1]), test=split(["dog", "cat"], [0, 0, 1])
    ).save_to_disk(tmp_path / "own")
    images = load_dataset("files", str(tmp_path / "own"))
    assert images.class_names == ("cat", "dog")
    assert images.train_labels.tolist() == [0, 1]
    assert images.test_labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        (["owl", "cat"], [0, 1], r"class\(es\) owl; those of its training split are c"),
        (["dog", "cat"], [0, -1], r"test labels are from -1 to 0; with 2 classes"),
    ],
)
def test_a_test_split_with_something_else(
    tmp_path: Path, names: list[str], labels: list[int], message: str
) -> None:
    DatasetDict(
        train=split(["cat", "dog"], [0, 1]), test=split(names, labels)
    ).save_to_disk(tmp_path / "own")
    with pytest.raises(ValueError, match=f"own is damaged: .*{message}"):
        load_dataset("files", str(tmp_path / "own"))


def test_the_order_of_the_list_counts_also_when_the_images_are_cached(
    tmp_path: Path,
) -> None:
    """One red-and-blue photograph of n01, two of n02, listed both ways round."""
    photographs(
        tmp_path,
        {
            f"{split}/{path}.jpg": (64, 64)
            for split in ("train", "val")
            for path in ("n01/0", "n02/0", "n02/1")
        },
    )
    for text, counts in (("n01\nn02\n", [1, 2]), ("n02\nn01\n", [2, 1])):
        (tmp_path / "classes.txt").write_text(text)
        load_dataset.cache_clear()
        images = load_dataset("imagenet100", str(tmp_path))
        assert images.class_names == tuple(text.split())
        assert np.bincount(images.train_labels).tolist() == counts


def test_grey_images_of_a_node_do_not_fit_a_run_in_colour(tmp_path: Path) -> None:
    """Nor when a run in grey, with the same classes and size, has left them cached."""
    path = write.npz(
        tmp_path / "mine.npz", {"images": PIXELS, "labels": np.array([0, 1, 2])}
    )
    assert load_node_data(str(path), RUN).images.shape == (3, 28, 28, 1)
    colour = replace(RUN, mean=(1.0, 2.0, 3.0), deviation=(1.0, 1.0, 1.0))
    with pytest.raises(
        ValueError,
        match=r"mine\.npz does not fit .* 1 channel.*28x28 with 3; save .*in colour",
    ):
        load_node_data(str(path), colour)
