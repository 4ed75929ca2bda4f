"""What is missing, cut off or overwritten is named, with the cure."""

from __future__ import annotations

import codecs
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.test_formats import COLOUR, GREY, ORGANS, TEN


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
        name, path = "organcmnist", write.npz(tmp_path / "organcmnist.npz", ORGANS)
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
        load_dataset(name, str(tmp_path))
    assert cure in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_cut_batch_is_named(tmp_path: Path, file: str, share: float) -> None:
    path = write.cifar(tmp_path, "cifar10", COLOUR) / file
    cut(path, share)
    with pytest.raises(ValueError, match=re.escape(str(path)) + " is damaged"):
        load_dataset("cifar10", str(tmp_path))


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
        load_dataset("cifar10", str(tmp_path))
    assert not victim.exists()


IDX = {
    "ends early": (lambda x: x[:-1], "bytes; by its header it should have"),
    "is too long": (lambda x: x + b"\0", "bytes; by its header it should have"),
    "ends in its header": (lambda x: x[:9], "ends after 9 bytes"),
    "has labels where images should be": (
        lambda x: b"\0\0\x08\x01" + x[4:],
        "begins with 00000801; an idx file with 3 dim.* begins with 00000803",
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
        load_dataset("fashionmnist", str(tmp_path))


def without(key: str) -> write.Arrays:
    return {k: v for k, v in ORGANS.items() if k != key}


WRONG: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "a key is missing": (without("test_labels"), r"it has .*test_images.*, not train_"),
    "floats": (
        ORGANS | {"train_images": ORGANS["train_images"] / 255},
        "training images are of type float64, not uint8",
    ),
    "not square": (
        ORGANS | {"train_images": ORGANS["train_images"][:, :20]},
        r"shape \(30, 20, 28, 1\)",
    ),
    "flat": (
        ORGANS | {"train_images": ORGANS["train_images"].reshape(30, -1)},
        r"shape \(30, 784\); it must be",
    ),
    "no training images": (
        {k: v[:0] if k.startswith("train") else v for k, v in ORGANS.items()},
        "no training labels or no test labels",
    ),
    "no test images": (
        {k: v[:0] if k.startswith("test") else v for k, v in ORGANS.items()},
        "no training labels or no test labels",
    ),
    "fewer labels than images": (
        ORGANS | {"train_labels": ORGANS["train_labels"][:-1]},
        r"training labels have the shape \(29,\) for 30 images",
    ),
    "several labels an image": (
        ORGANS | {"train_labels": np.zeros((30, 14), np.uint8)},
        r"shape \(30, 14\)",
    ),
    "halves": (
        ORGANS | {"test_labels": ORGANS["test_labels"] + 0.5},
        "test labels .* not whole numbers",
    ),
    "no number": (
        ORGANS | {"test_labels": np.full(20, np.nan)},
        "labels .* not whole numbers",
    ),
    "texts": (ORGANS | {"test_labels": np.array(["a"] * 20)}, "<U1.* not whole"),
    "negative": (
        ORGANS | {"train_labels": ORGANS["train_labels"].astype(int) - 1},
        "training labels are from -1 to 9; with 11 classes .* 0 to 10",
    ),
    "absurd": (
        ORGANS | {"test_labels": np.full(20, 200_000_000_000)},
        "label is 200000000000, .* 30 training images; number the classes 0, 1, 2",
    ),
    "another size": (
        ORGANS | {"test_images": ORGANS["test_images"][:, :14, :14]},
        "training images are 28x28x1, the test images 14x14x1",
    ),
    "pickled objects": (
        ORGANS | {"train_labels": np.array([None] * 30)},
        "allow_pickle",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_a_data_set_is_refused(tmp_path: Path, case: str) -> None:
    data, message = WRONG[case]
    path = write.npz(tmp_path / "organcmnist.npz", data)
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset("organcmnist", str(tmp_path))
    assert str(caught.value).startswith(f"{path} is damaged: ")


OTHERS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "fewer classes": (
        write.arrays(30, 20, channels=3, classes=8),
        r"28x28 pixels, 3 channel\(s\) and 8 classes \(labels from 0 to 7\)",
    ),
    "more classes": (
        write.arrays(30, 20, channels=3, classes=10),
        r"28x28 pixels, 3 channel\(s\) and 10 classes \(labels from 0 to 9\)",
    ),
    "grey": (write.arrays(30, 20, classes=9), r"28x28 pixels, 1 channel\(s\) and 9"),
    "small": (
        write.arrays(30, 20, size=8, channels=3, classes=9),
        r"8x8 pixels, 3 channel\(s\) and 9",
    ),
}


@pytest.mark.parametrize("kind", ["npz", "saved"])
@pytest.mark.parametrize("case", OTHERS)
def test_another_data_set_under_the_name_of_one(
    tmp_path: Path, case: str, kind: str
) -> None:
    data, has = OTHERS[case]
    if kind == "npz":
        path = write.npz(tmp_path / "pathmnist.npz", data)
    else:
        path = write.saved(tmp_path / "pathmnist", data)
    with pytest.raises(ValueError, match=f"it has {has}.*pathmnist has") as caught:
        load_dataset("pathmnist", str(tmp_path))
    assert str(caught.value).startswith(f"{path} is not pathmnist: ")
    for text in (
        "pathmnist has 28x28 pixels, 3 channel(s) and 9 classes (labels from 0 to 8)",
        "https://zenodo.org/",
    ):
        assert text in str(caught.value)


def test_the_file_of_another_set_that_is_just_like_it(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "organsmnist.npz", ORGANS)
    with pytest.raises(ValueError, match="set dataset to 'organsmnist', or data-dir"):
        load_dataset("organcmnist", str(path))
    assert len(load_dataset("organsmnist", str(path)).class_names) == 11


@pytest.mark.parametrize("kind", ["npz", "saved"])
def test_an_absurd_label_does_not_fill_the_memory(tmp_path: Path, kind: str) -> None:
    labels = GREY["train_labels"].astype(np.int64)
    labels[7] = 200_000_000_000
    data = GREY | {"train_labels": labels}
    if kind == "npz":
        path = write.npz(tmp_path / "own.npz", data)
    else:
        path = write.saved(tmp_path / "own", data)
    with pytest.raises(ValueError, match=r"a label is 200000000000, .* 30 training im"):
        load_dataset("files", str(path))
    # As many classes as training images are believed, one more is not.
    for largest, believed in ((29, True), (30, False)):
        load_dataset.cache_clear()
        labels[7] = largest
        path = write.npz(tmp_path / f"{largest}.npz", GREY | {"train_labels": labels})
        if believed:
            assert load_dataset("files", str(path)).class_names[-1] == "29"
        else:
            with pytest.raises(
                ValueError, match=r"30\.npz is damaged: a label is 30, "
            ):
                load_dataset("files", str(path))


@pytest.mark.parametrize("names", [np.array("cat"), np.array([["cat", "dog"]])])
def test_class_names_that_are_no_list(tmp_path: Path, names: np.ndarray) -> None:
    path = write.npz(tmp_path / "own.npz", GREY | {"class_names": names})
    with pytest.raises(ValueError, match=r"own\.npz is damaged: its class_names have"):
        load_dataset("files", str(path))


BATCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "names are a number": (
        "batches.meta",
        {"label_names": 10},
        "no list label_names of 10 names",
    ),
    "names are missing": ("batches.meta", {}, "no list label_names of 10 names"),
    "labels are ragged": (
        "data_batch_2",
        {"data": write.rows(COLOUR["train_images"][:2]), "labels": [[1], [2, 3]]},
        "inhomogeneous",
    ),
    "labels are pairs": (
        "data_batch_2",
        {"data": write.rows(COLOUR["train_images"][:2]), "labels": [[1, 2], [2, 3]]},
        r"labels have the shape \(2, 2\) for 2 images",
    ),
    "labels are too few": (
        "test_batch",
        {"data": write.rows(COLOUR["train_images"][:2]), "labels": [1]},
        r"labels have the shape \(1,\) for 2 images",
    ),
    "no images": (
        "data_batch_5",
        {"data": np.empty((0, 3072), np.uint8), "labels": []},
        "no data of 3x32x32 bytes",
    ),
    "floats": ("test_batch", {"data": np.ones((1, 3072)), "labels": [1]}, "no data of"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_with_something_wrong_is_named(tmp_path: Path, case: str) -> None:
    file, content, message = BATCHES[case]
    path = write.cifar(tmp_path, "cifar10", COLOUR) / file
    path.write_bytes(write.python2(content))
    with pytest.raises(ValueError, match=f"{file} is damaged: .*{message}") as caught:
        load_dataset("cifar10", str(tmp_path))
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).count("is damaged") == 1


class Encoded:
    """Python 3's way to write bytes below protocol 3, with other arguments."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return codecs.encode, self.arguments


@pytest.mark.parametrize(
    "arguments", [("x", "rot13"), (b"x", "latin1"), ("x" * 9, "zlib"), ("x",)]
)
def test_a_batch_gets_bytes_of_a_text_and_no_other_codec(
    tmp_path: Path, arguments: tuple[Any, ...]
) -> None:
    path = write.cifar(tmp_path, "cifar10", COLOUR) / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Encoded(*arguments)}, protocol=2))
    with pytest.raises(
        ValueError, match=r"data_batch_1 is damaged: (it asks for|TypeError: .*_latin1)"
    ):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.parametrize("size", [0, 8])
@pytest.mark.parametrize("mode", ["I;16", "F"])
def test_more_than_eight_bits_are_not_cut_off(
    tmp_path: Path, mode: str, size: int
) -> None:
    kind = np.uint16 if mode == "I;16" else np.float32
    ramp = (np.arange(256) * 256).reshape(16, 16).astype(kind)
    for split in ("train", "test"):
        path = tmp_path / split / "a" / "deep.tif"
        path.parent.mkdir(parents=True)
        Image.fromarray(ramp).save(path)
    with pytest.raises(ValueError, match=f"Pillow's mode {mode}; save it") as caught:
        load_dataset("files", str(tmp_path), size)
    assert str(caught.value).startswith(str(tmp_path / "train" / "a" / "deep.tif has"))


def test_cifar10_1_of_another_size(tmp_path: Path) -> None:
    write.cifar(tmp_path, "cifar10", COLOUR)
    new = write.arrays(7, 1, size=16, channels=3, classes=10)
    np.save(tmp_path / "cifar10.1_v4_data.npy", new["train_images"])
    np.save(tmp_path / "cifar10.1_v4_labels.npy", new["train_labels"])
    with pytest.raises(
        ValueError,
        match=r"cifar10\.1_v4_data\.npy is damaged: .*\(7, 16, 16, 3\).*modestyachts",
    ):
        load_dataset("cifar10", str(tmp_path))


def test_cifar10_1_is_checked_as_well(tmp_path: Path) -> None:
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.arange(20) % 11)
    np.save(tmp_path / "cifar10.1_v6_data.npy", COLOUR["train_images"])
    with pytest.raises(ValueError, match=r"v6_labels\.npy is damaged: .* from 0 to 10"):
        load_dataset("cifar10", str(tmp_path))
    cut(tmp_path / "cifar10.1_v6_data.npy")
    with pytest.raises(ValueError, match=r"v6_data\.npy is damaged: .*modestyachts"):
        load_dataset("cifar10", str(tmp_path))


def test_saved_folders_with_something_wrong(tmp_path: Path) -> None:
    folder = write.saved(tmp_path / "a", GREY, columns=("picture", "label"))
    with pytest.raises(ValueError, match=r"columns are picture, label; .*image or img"):
        load_dataset("files", str(folder))
    folder = write.saved(tmp_path / "b", GREY)
    cut(next((folder / "train").glob("*.arrow")))
    with pytest.raises(ValueError, match=re.escape(str(folder)) + " is damaged"):
        load_dataset("files", str(folder))
    folder = write.saved(tmp_path / "c", GREY)
    next((folder / "test").glob("*.arrow")).unlink()
    with pytest.raises(ValueError, match=r"\.arrow is missing; write it again"):
        load_dataset("files", str(folder))
    folder = write.saved(tmp_path / "d", GREY)
    with pytest.raises(ValueError, match="single split; train and test are needed"):
        load_dataset("files", str(folder / "train"))


def test_image_folders_with_something_wrong(tmp_path: Path) -> None:
    write.image_folder(tmp_path, COLOUR, TEN)
    with pytest.raises(
        FileNotFoundError, match=r"classes\.txt is missing; imagenet100"
    ):
        load_dataset("imagenet100", str(tmp_path))
    (tmp_path / "classes.txt").write_text(f"{TEN[0]}\nn99\n")
    with pytest.raises(FileNotFoundError, match=r"train/n99 has no image"):
        load_dataset("imagenet100", str(tmp_path))
    (tmp_path / "classes.txt").write_text(f"{TEN[0]}\n{TEN[0]}\n")
    with pytest.raises(ValueError, match=f"names {TEN[0]} more than once"):
        load_dataset("imagenet100", str(tmp_path))
    small = write.arrays(1, 1, size=9, channels=3)
    write.pictures(tmp_path / "train", small["train_images"], np.array([1]), TEN)
    with pytest.raises(ValueError, match=r"has 9x9 pixels, .* 32x32; .*image-size"):
        load_dataset("files", str(tmp_path))
    assert load_dataset("files", str(tmp_path), 16).size == 16


def test_another_size_than_asked_for(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "own.npz", GREY)
    assert load_dataset("files", str(path), 28).size == 28
    with pytest.raises(
        ValueError, match=r"image-size is 32, but .* are 28x28, and only"
    ):
        load_dataset("files", str(path), 32)


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
        load_dataset(name, str(folder))
    for text in (file, str(folder), place):
        assert text in str(caught.value)
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_left_behind(
    tmp_path: Path, offline: None
) -> None:
    """A slip of the pen in data-dir makes no folder, nor those above it."""
    wrong = tmp_path / "tyop" / "medmnist"
    with pytest.raises(FileNotFoundError, match=f"no bloodmnist.npz, .* in {wrong}; "):
        load_dataset("bloodmnist", str(wrong))
    assert not (tmp_path / "tyop").exists()


def test_one_of_the_four_files_is_missing(tmp_path: Path) -> None:
    write.fashion(tmp_path, GREY)[3].unlink()
    with pytest.raises(FileNotFoundError, match="but not t10k-labels-idx1-ubyte"):
        load_dataset("fashionmnist", str(tmp_path))


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("file", ["data_batch_4", "test_batch", "batches.meta"])
def test_a_batch_is_missing(
    tmp_path: Path, offline: None, file: str, inner: bool
) -> None:
    folder = write.cifar(tmp_path, "cifar10", COLOUR)
    (folder / file).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"^{folder / file} is missing; unpack cifar"
    ):
        load_dataset("cifar10", str(folder if inner else tmp_path))


def test_all_batches_are_missing(tmp_path: Path, offline: None) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(FileNotFoundError, match=r"data_batch_1, .* is missing; unp"):
        load_dataset("cifar10", str(tmp_path))
