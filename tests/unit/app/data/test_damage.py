"""What is missing, cut off or overwritten is named, with the cure."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.data import load_images
from tests.unit.app.data import write
from tests.unit.app.data.test_formats import COLOUR, GREY, TEN


def cut(path: Path, share: float = 0.6) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def overwrite(path: Path) -> None:
    """In the middle, where the content is."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = b"\xa5" * 64
    path.write_bytes(content)


def error_page(path: Path) -> None:
    path.write_text("<html>503 Service Unavailable</html>")


@pytest.mark.parametrize("harm", [cut, overwrite, error_page])
@pytest.mark.parametrize("kind", ["npz", "idx.gz", "cifar.tar.gz", "png"])
def test_a_damaged_file_is_named_with_its_cure(
    tmp_path: Path, kind: str, harm: Callable[[Path], None]
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
    harm(path)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*damaged") as caught:
        load_images(name, str(tmp_path))
    assert cure in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_cut_batch_is_named(tmp_path: Path, file: str, share: float) -> None:
    path = write.cifar(tmp_path, "cifar10", COLOUR) / file
    cut(path, share)
    with pytest.raises(ValueError, match=re.escape(str(path)) + " is damaged"):
        load_images("cifar10", str(tmp_path))


class Evil:
    """Unpickled without care, this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_a_batch_cannot_call_anything(tmp_path: Path) -> None:
    path = write.cifar(tmp_path, "cifar10", COLOUR) / "data_batch_1"
    victim = tmp_path / "made"
    path.write_bytes(pickle.dumps({"data": Evil(victim), "labels": []}, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_1 is damaged: it asks for "):
        load_images("cifar10", str(tmp_path))
    assert not victim.exists()


IDX = {
    "ends early": (lambda x: x[:-1], r"header speaks of .* bytes, it has"),
    "is too long": (lambda x: x + b"\0", r"header speaks of .* bytes, it has"),
    "ends in its header": (lambda x: x[:9], "ends after 9 bytes"),
    "has labels where images should be": (
        lambda x: b"\0\0\x08\x01" + x[4:],
        "begins with 00000801, an idx file of 3 dimensions with 00000803",
    ),
    "is of floats": (lambda x: b"\0\0\x0d\x03" + x[4:], "begins with 00000d03"),
    "is empty": (lambda x: b"", "begins with nothing"),
}


@pytest.mark.parametrize("case", IDX)
def test_an_idx_file_that(tmp_path: Path, case: str) -> None:
    change, message = IDX[case]
    path = write.fashion(tmp_path, GREY, "")[2]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"t10k-images.* is damaged: .*{message}"):
        load_images("fashionmnist", str(tmp_path))


def without(key: str) -> write.Arrays:
    return {k: v for k, v in GREY.items() if k != key}


WRONG: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "a key is missing": (without("test_labels"), r"it has .*test_images.*, not train_"),
    "floats": (
        GREY | {"train_images": GREY["train_images"] / 255},
        "training images are of type float64, not uint8",
    ),
    "not square": (
        GREY | {"train_images": GREY["train_images"][:, :20]},
        r"shape \(30, 20, 28, 1\)",
    ),
    "flat": (
        GREY | {"train_images": GREY["train_images"].reshape(30, -1)},
        r"shape \(30, 784\); it must be",
    ),
    "no training images": (
        {k: v[:0] if k.startswith("train") else v for k, v in GREY.items()},
        "no labels of training",
    ),
    "no test images": (
        {k: v[:0] if k.startswith("test") else v for k, v in GREY.items()},
        "no labels of training or of test",
    ),
    "fewer labels than images": (
        GREY | {"train_labels": GREY["train_labels"][:-1]},
        r"training labels have the shape \(29,\) for 30 images",
    ),
    "several labels an image": (
        GREY | {"train_labels": np.zeros((30, 14), np.uint8)},
        r"shape \(30, 14\)",
    ),
    "halves": (
        GREY | {"test_labels": GREY["test_labels"] + 0.5},
        "test labels .* not whole numbers",
    ),
    "no number": (
        GREY | {"test_labels": np.full(20, np.nan)},
        "labels .* not whole numbers",
    ),
    "texts": (GREY | {"test_labels": np.array(["a"] * 20)}, "<U1.* not whole"),
    "negative": (
        GREY | {"train_labels": GREY["train_labels"].astype(int) - 1},
        "training labels are from -1 to 8; with 11 classes .* 0 to 10",
    ),
    "out of range": (
        GREY | {"test_labels": GREY["test_labels"] + 2},
        "test labels are from 2 to 11; with 11 classes",
    ),
    "another size": (
        GREY | {"test_images": GREY["test_images"][:, :14, :14]},
        "training images are 28x28x1, the test images 14x14x1",
    ),
    "pickled objects": (
        GREY | {"train_labels": np.array([None] * 30)},
        "allow_pickle",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_a_data_set_is_refused(tmp_path: Path, case: str) -> None:
    data, message = WRONG[case]
    path = write.npz(tmp_path / "organcmnist.npz", data)
    with pytest.raises(ValueError, match=message) as caught:
        load_images("organcmnist", str(tmp_path))
    assert str(caught.value).startswith(f"{path} is damaged: ")


def test_cifar10_1_is_checked_as_well(tmp_path: Path) -> None:
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.arange(20) % 11)
    np.save(tmp_path / "cifar10.1_v6_data.npy", COLOUR["train_images"])
    with pytest.raises(ValueError, match=r"v6_labels\.npy is damaged: .* from 0 to 10"):
        load_images("cifar10", str(tmp_path))
    cut(tmp_path / "cifar10.1_v6_data.npy")
    with pytest.raises(ValueError, match=r"v6_data\.npy is damaged: .*modestyachts"):
        load_images("cifar10", str(tmp_path))


def test_saved_folders_with_something_wrong(tmp_path: Path) -> None:
    folder = write.saved(tmp_path / "a", GREY, columns=("picture", "label"))
    with pytest.raises(ValueError, match=r"columns are picture, label; .*image or img"):
        load_images("files", str(folder))
    folder = write.saved(tmp_path / "b", GREY)
    cut(next((folder / "train").glob("*.arrow")))
    with pytest.raises(ValueError, match=re.escape(str(folder)) + " is damaged"):
        load_images("files", str(folder))
    folder = write.saved(tmp_path / "c", GREY)
    next((folder / "test").glob("*.arrow")).unlink()
    with pytest.raises(ValueError, match=r"\.arrow is missing; write it again"):
        load_images("files", str(folder))
    folder = write.saved(tmp_path / "d", GREY)
    with pytest.raises(ValueError, match="one split; training and test are needed"):
        load_images("files", str(folder / "train"))


def test_image_folders_with_something_wrong(tmp_path: Path) -> None:
    write.image_folder(tmp_path, COLOUR, TEN)
    with pytest.raises(
        FileNotFoundError, match=r"classes\.txt is missing; imagenet100"
    ):
        load_images("imagenet100", str(tmp_path))
    (tmp_path / "classes.txt").write_text(f"{TEN[0]}\nn99\n")
    with pytest.raises(FileNotFoundError, match=r"train/n99 has no picture"):
        load_images("imagenet100", str(tmp_path))
    (tmp_path / "classes.txt").write_text(f"{TEN[0]}\n{TEN[0]}\n")
    with pytest.raises(ValueError, match=f"names {TEN[0]} twice"):
        load_images("imagenet100", str(tmp_path))
    small = write.arrays(1, 1, size=9, channels=3)
    write.pictures(tmp_path / "train", small["train_images"], np.array([1]), TEN)
    with pytest.raises(ValueError, match=r"is 9x9 pixels, .* 32x32; .*image-size"):
        load_images("files", str(tmp_path))
    assert load_images("files", str(tmp_path), 16).size == 16


def test_another_size_than_asked_for(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "own.npz", GREY)
    assert load_images("files", str(path), 28).size == 28
    with pytest.raises(
        ValueError, match=r"image-size is 32, but .* are 28x28, and only"
    ):
        load_images("files", str(path), 32)


@pytest.mark.parametrize(
    ("name", "file", "place"),
    [
        ("bloodmnist", "bloodmnist.npz", "https://zenodo.org/"),
        ("fashionmnist", "train-images-idx3-ubyte", "https://github.com/zalando"),
        ("cifar10", "cifar-10-python.tar.gz", "https://www.cs.toronto.edu"),
        ("cifar100", "cifar-100-python/", "https://www.cs.toronto.edu"),
        ("imagenet100", "classes.txt", "https://www.image-net.org"),
        ("files", "an .npz file, a folder written by", ""),
    ],
)
def test_a_missing_file_says_where_it_was_looked_for_and_where_to_get_it(
    tmp_path: Path, offline: None, name: str, file: str, place: str
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        load_images(name, str(folder))
    for text in (file, str(folder), place):
        assert text in str(caught.value)
    assert list(folder.iterdir()) == []


def test_one_of_the_four_files_is_missing(tmp_path: Path) -> None:
    write.fashion(tmp_path, GREY)[3].unlink()
    with pytest.raises(FileNotFoundError, match="but not t10k-labels-idx1-ubyte"):
        load_images("fashionmnist", str(tmp_path))


def test_a_batch_is_missing(tmp_path: Path) -> None:
    (write.cifar(tmp_path, "cifar10", COLOUR) / "data_batch_4").unlink()
    with pytest.raises(
        FileNotFoundError, match="data_batch_4 is missing; unpack cifar"
    ):
        load_images("cifar10", str(tmp_path))
