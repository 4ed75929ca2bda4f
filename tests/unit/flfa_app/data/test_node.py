"""A node's own data: the labels are the run's, the pixels the node's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset
from PIL import Image

from flfa_app.data.dataset import DataDescription
from flfa_app.data.node_data import load_node_data
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.test_formats import photographs

RUN = DataDescription((100.0,), (50.0,), 28, ("cat", "dog", "owl"))
COLOUR_RUN = DataDescription(
    (1.0, 2.0, 3.0), (1.0, 1.0, 1.0), 16, ("cat", "dog", "owl")
)
DATA = write.arrays(9, 1, classes=3)


@pytest.mark.parametrize(
    "keys", [("train_images", "train_labels"), ("images", "labels")]
)
def test_an_archive(tmp_path: Path, keys: tuple[str, str]) -> None:
    content = dict(zip(keys, (DATA["train_images"], DATA["train_labels"]), strict=True))
    path = write.npz(tmp_path / "mine.npz", content)
    images, labels = load_node_data(str(path), RUN)
    np.testing.assert_array_equal(images[..., 0], DATA["train_images"])
    assert labels.tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize("split", [False, True])
def test_a_saved_folder_with_classes_in_another_order(
    tmp_path: Path, split: bool
) -> None:
    """Its 0, 1 are owl, cat: the run's 2, 0."""
    pictures = [Image.fromarray(x) for x in DATA["train_images"][:4]]
    table = Dataset.from_dict({"image": pictures, "label": [0, 1, 1, 0]})
    table = table.cast_column("label", ClassLabel(names=["owl", "cat"]))
    from datasets import DatasetDict

    (DatasetDict({"train": table}) if split else table).save_to_disk(tmp_path / "mine")
    images, labels = load_node_data(str(tmp_path / "mine"), RUN)
    np.testing.assert_array_equal(images[..., 0], DATA["train_images"][:4])
    assert labels.tolist() == [2, 0, 0, 2]


def test_a_missing_label_is_no_class(tmp_path: Path) -> None:
    """-1 is what ``datasets`` has for an image without a label."""
    pictures = [Image.fromarray(x) for x in DATA["train_images"][:2]]
    table = Dataset.from_dict({"image": pictures, "label": [0, -1]})
    table = table.cast_column("label", ClassLabel(names=["owl", "cat"]))
    table.save_to_disk(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"labels are from -1 to 0; with 2 classes"):
        load_node_data(str(tmp_path / "mine"), RUN)


@pytest.mark.parametrize("inner", ["", "train/"])
def test_an_image_folder_has_some_of_the_classes(tmp_path: Path, inner: str) -> None:
    photographs(
        tmp_path,
        {f"{inner}{name}/{i}.jpg": (40, 30) for name in ("owl", "dog") for i in (1, 2)},
    )
    images, labels = load_node_data(str(tmp_path), COLOUR_RUN)
    assert images.shape == (4, 16, 16, 3)
    assert labels.tolist() == [1, 1, 2, 2]


def test_what_does_not_fit_the_model(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "a.npz", write.arrays(channels=3, size=32))
    with pytest.raises(
        ValueError,
        match=r"a\.npz.*are 32x32 with 3 channel\(s\), the model .*28x28 with 1",
    ):
        load_node_data(str(path), RUN)
    path = write.npz(tmp_path / "b.npz", write.arrays(classes=4))
    with pytest.raises(
        ValueError, match=r"b\.npz.*labels are from 0 to 3; with 3 class"
    ):
        load_node_data(str(path), RUN)
    photographs(tmp_path / "c", {"fox/1.jpg": (20, 20), "cat/1.jpg": (20, 20)})
    with pytest.raises(
        ValueError, match=r"class\(es\) fox; those of the run are cat, d"
    ):
        load_node_data(str(tmp_path / "c"), COLOUR_RUN)
    with pytest.raises(
        FileNotFoundError, match="nowhere is missing; this node's datase"
    ):
        load_node_data(str(tmp_path / "nowhere"), RUN)
    (tmp_path / "d.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"d\.npz is damaged: it has 2 bytes"):
        load_node_data(str(tmp_path / "d.npz"), RUN)


def test_a_class_without_a_picture_of_this_node(tmp_path: Path) -> None:
    """Its folder is there, as on the other nodes; one picture of any class will do."""
    for name in ("cat", "dog", "owl"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no image .*at least one"):
        load_node_data(str(tmp_path), COLOUR_RUN)
    photographs(tmp_path, {"dog/1.jpg": (40, 30)})
    images, labels = load_node_data(str(tmp_path), COLOUR_RUN)
    assert images.shape == (1, 16, 16, 3)
    assert labels.tolist() == [1]


def test_what_is_whole_but_of_another_kind_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    floats = DATA | {"train_images": DATA["train_images"] / 255}
    path = write.npz(tmp_path / "floats.npz", floats)
    with pytest.raises(
        ValueError, match=r"floats\.npz are of type float64; they must be uint8"
    ) as caught:
        load_node_data(str(path), RUN)
    assert "damaged" not in str(caught.value)
    photographs(tmp_path / "colour", {"cat/1.jpg": (40, 30)})
    with pytest.raises(
        ValueError, match=r"colour does not fit .*3 channel.*with 1; save them in grey"
    ) as caught:
        load_node_data(str(tmp_path / "colour"), RUN)
    assert "damaged" not in str(caught.value)
