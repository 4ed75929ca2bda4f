"""Every format gives back the pixels and labels that were written."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flfa_app.data.dataset import ImageDataset
from flfa_app.data.loading import load_dataset
from flfa_app.data.sources import DATASETS
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import Arrays

GREY = write.arrays(30, 20, classes=10)
ORGANS = write.arrays(30, 20, classes=11)
COLOUR = write.arrays(20, 10, size=32, channels=3, classes=10)
HUNDRED = write.arrays(200, 100, size=32, channels=3, classes=100)
TEN = [f"class {i}" for i in range(10)]


def assert_same(images: ImageDataset, data: Arrays) -> None:
    for split in ("train", "test"):
        pixels = data[f"{split}_images"]
        pixels = pixels if pixels.ndim == 4 else pixels[..., None]
        np.testing.assert_array_equal(getattr(images, split), pixels)
        labels = getattr(images, f"{split}_labels")
        np.testing.assert_array_equal(labels, data[f"{split}_labels"].reshape(-1))
        assert labels.dtype == np.int64


Writer = Callable[[Path], object]
FORMATS: dict[str, tuple[str, Arrays, Writer]] = {
    "medmnist, labels in a column": (
        "organcmnist",
        {k: v[:, None] if "labels" in k else v for k, v in ORGANS.items()},
        lambda root: write.npz(
            root / "organcmnist.npz",
            {k: v[:, None] if "labels" in k else v for k, v in ORGANS.items()},
        ),
    ),
    "idx.gz": ("fashionmnist", GREY, lambda root: write.fashion(root, GREY)),
    "idx": ("fashionmnist", GREY, lambda root: write.fashion(root, GREY, "")),
    "idx, torchvision's raw": (
        "fashionmnist",
        GREY,
        lambda root: write.fashion(root / "FashionMNIST" / "raw", GREY, ""),
    ),
    "idx, raw": ("fashionmnist", GREY, lambda root: write.fashion(root / "raw", GREY)),
    "cifar10 batches": ("cifar10", COLOUR, lambda r: write.cifar(r, "cifar10", COLOUR)),
    "cifar10 archive": (
        "cifar10",
        COLOUR,
        lambda root: write.cifar(root, "cifar10", COLOUR, archive=True),
    ),
    "cifar100 batches": (
        "cifar100",
        HUNDRED,
        lambda root: write.cifar(root, "cifar100", HUNDRED),
    ),
    "cifar10.npz": (
        "cifar10",
        COLOUR,
        lambda root: write.npz(root / "cifar10.npz", COLOUR),
    ),
    "npz with the names of Keras": (
        "fashionmnist",
        GREY,
        lambda root: write.npz(
            root / "fashionmnist.npz",
            {
                "x_train": GREY["train_images"],
                "y_train": GREY["train_labels"],
                "x_test": GREY["test_images"],
                "y_test": GREY["test_labels"],
            },
        ),
    ),
    "load_from_disk": (
        "cifar10",
        COLOUR,
        lambda root: write.saved(root / "cifar10", COLOUR, columns=("img", "label")),
    ),
    "load_from_disk, fine labels": (
        "cifar100",
        HUNDRED,
        lambda root: write.saved(root, HUNDRED, columns=("img", "fine_label")),
    ),
    "load_from_disk, grey": (
        "fashionmnist",
        GREY,
        lambda root: write.saved(root, GREY, names=TEN),
    ),
    "image folders": (
        "files",
        # Folders are read class by class.
        {k: v[np.argsort(COLOUR[k[:-6] + "labels"], kind="stable")]
         if k.endswith("images") else np.sort(v) for k, v in COLOUR.items()},
        lambda root: write.image_folder(root, COLOUR, TEN),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_pixels_and_labels_come_back(tmp_path: Path, name: str) -> None:
    dataset, data, writer = FORMATS[name]
    root = tmp_path / "data"
    root.mkdir()
    writer(root)
    assert_same(load_dataset(dataset, str(root)), data)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_batches_written_by_python_3(tmp_path: Path, protocol: int) -> None:
    folder = write.cifar(tmp_path, "cifar10", COLOUR)
    for path in folder.iterdir():
        content = pickle.loads(path.read_bytes(), encoding="latin1")
        path.write_bytes(pickle.dumps(content, protocol))
    assert_same(load_dataset("cifar10", str(tmp_path)), COLOUR)


def test_an_archive_beside_a_half_unpacked_folder(tmp_path: Path) -> None:
    write.cifar(tmp_path, "cifar10", COLOUR, archive=True)
    (write.cifar(tmp_path, "cifar10", COLOUR) / "test_batch").unlink()
    assert_same(load_dataset("cifar10", str(tmp_path)), COLOUR)


@pytest.mark.parametrize("size", [0, 28])
def test_folders_and_what_is_hidden_are_no_pictures(tmp_path: Path, size: int) -> None:
    write.image_folder(tmp_path, GREY, TEN)
    number = len(load_dataset("files", str(tmp_path), size).train)
    load_dataset.cache_clear()
    for split in ("train", "test"):
        (tmp_path / split / TEN[0] / "x.png").mkdir()
        (tmp_path / split / TEN[0] / "._0000.png").write_bytes(b"\0\5\x16\7")
        hidden = tmp_path / split / ".ipynb_checkpoints"
        hidden.mkdir()
        (hidden / "0-checkpoint.png").write_bytes(b"")
    images = load_dataset("files", str(tmp_path), size)
    assert len(images.train) == number == 30
    assert images.class_names == tuple(TEN)


def test_resized_pictures_of_every_kind_stay_what_they_are(tmp_path: Path) -> None:
    """Also those of one bit, and files with several pictures: the first counts."""
    grey = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    for split in ("train", "test"):
        folder = tmp_path / "grey" / split / "a"
        folder.mkdir(parents=True)
        grey.save(folder / "l.png")
        grey.convert("1").save(folder / "1.png")
        grey.save(folder / "s.tif", save_all=True, append_images=[grey.rotate(90)])
        folder = tmp_path / "colour" / split / "a"
        folder.mkdir(parents=True)
        grey.convert("P").save(folder / "p.png")
        grey.convert("RGBA").save(folder / "a.webp", lossless=True)
        grey.save(folder / "s.gif", save_all=True, append_images=[grey.rotate(90)])
    images = load_dataset("files", str(tmp_path / "grey"), 16)
    assert images.train.shape == (3, 16, 16, 1)
    assert set(images.train[0].flat) == {0, 255}
    for picture in images.train[1:]:
        np.testing.assert_array_equal(picture[..., 0], np.asarray(grey))
    images = load_dataset("files", str(tmp_path / "colour"), 16)
    for picture in images.train:
        np.testing.assert_array_equal(picture[..., 2], np.asarray(grey))


def test_class_names_come_from_the_files_that_have_them(tmp_path: Path) -> None:
    for sub in ("a", "b", "c", "d"):
        (tmp_path / sub).mkdir()
    write.cifar(tmp_path / "a", "cifar100", HUNDRED)
    write.npz(tmp_path / "b" / "cifar100.npz", HUNDRED)
    write.saved(tmp_path / "c", GREY, names=TEN)
    write.npz(tmp_path / "d.npz", GREY | {"class_names": np.array(TEN)})
    hundred = tuple(f"class {i}" for i in range(100))
    assert load_dataset("cifar100", str(tmp_path / "a")).class_names == hundred
    assert load_dataset("cifar100", str(tmp_path / "b")).class_names[99] == "99"
    assert load_dataset("files", str(tmp_path / "c")).class_names == tuple(TEN)
    assert load_dataset("files", str(tmp_path / "d.npz")).class_names == tuple(TEN)


def test_a_file_that_is_there_is_not_downloaded(tmp_path: Path, offline: None) -> None:
    write.npz(tmp_path / "bloodmnist.npz", write.arrays(channels=3, classes=8))
    assert load_dataset("bloodmnist", str(tmp_path)).class_names[0] == "basophil"


def test_a_named_set_may_be_given_by_its_file(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "cifar10_small.npz", COLOUR)
    images = load_dataset("cifar10", str(path))
    assert_same(images, COLOUR)
    assert images.class_names[3] == "cat"


def test_the_names_and_addresses_are_those_of_the_medmnist_package() -> None:
    import medmnist

    single = {
        name
        for name, info in medmnist.INFO.items()
        if "multi-label" not in info["task"] and not name.endswith("3d")
    }
    others = {"digits", "fashionmnist", "cifar10", "cifar100", "imagenet100", "files"}
    assert set(DATASETS) - others == single
    for name in single:
        assert DATASETS[name].url == medmnist.INFO[name]["url"]


@pytest.mark.parametrize("kind", ["npz", "saved"])
def test_further_columns_of_own_data(tmp_path: Path, kind: str) -> None:
    writers, wards = np.array(["eve", "bob", "eve"] * 10), np.arange(30)
    if kind == "npz":
        path = write.npz(
            tmp_path / "own.npz",
            GREY
            | {"train_writer": writers, "train_ward": wards}
            # Not one value for each image, and not of the training images.
            | {"train_note": np.arange(3), "test_writer": np.arange(20)},
        )
    else:
        path = write.saved(
            tmp_path / "own", GREY, writer=writers.tolist(), ward=wards.tolist()
        )
    columns = load_dataset("files", str(path)).columns
    assert columns.keys() == {"writer", "ward"}
    assert columns["writer"].tolist() == writers.tolist()
    assert columns["ward"].tolist() == wards.tolist()


def test_cifar10_1_beside_cifar10_is_a_further_test_set(tmp_path: Path) -> None:
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    for version, n in (("v4", 7), ("v6", 5)):
        new = write.arrays(n, 1, size=32, channels=3, classes=10)
        np.save(tmp_path / f"cifar10.1_{version}_data.npy", new["train_images"])
        np.save(tmp_path / f"cifar10.1_{version}_labels.npy", new["train_labels"])
    extra = load_dataset("cifar10", str(tmp_path)).extra_tests
    assert extra.keys() == {"cifar10.1-v4", "cifar10.1-v6"}
    np.testing.assert_array_equal(extra["cifar10.1-v6"][0], new["train_images"])
    np.testing.assert_array_equal(extra["cifar10.1-v6"][1], new["train_labels"])
    (tmp_path / "cifar10.1_v4_labels.npy").unlink()
    load_dataset.cache_clear()
    with pytest.raises(
        FileNotFoundError, match=r"v4_data.npy exists, but .*_labels.npy is missing"
    ):
        load_dataset("cifar10", str(tmp_path))


def photographs(root: Path, sizes: dict[str, tuple[int, int]]) -> None:
    """A red left half, a blue right half, of the sizes given by path."""
    for path, (width, height) in sizes.items():
        picture = np.zeros((height, width, 3), np.uint8)
        picture[:, : width // 2, 0] = picture[:, width // 2 :, 2] = 200
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(root / path, quality=95)


def test_imagenet100_uses_exactly_the_classes_of_its_list(tmp_path: Path) -> None:
    """Labels are by the list's order; sides become 64, or what is asked for."""
    photographs(
        tmp_path,
        {
            f"{split}/{name}/{i}.JPEG": size
            for split in ("train", "val")
            for name in ("n01", "n02", "n03")
            for i, size in enumerate([(100, 80), (70, 200)])
        },
    )
    (tmp_path / "classes.txt").write_text("n03\nn01\n\n")
    images = load_dataset("imagenet100", str(tmp_path))
    assert images.train.shape == images.test.shape == (4, 64, 64, 3)
    assert images.class_names == ("n03", "n01")
    assert images.train_labels.tolist() == [0, 0, 1, 1]
    # The middle was cut out: as much red as blue.
    for picture in images.train:
        assert picture[:, :28, 0].min() > 150 > 50 > picture[:, :28, 2].max()
        assert picture[:, 36:, 2].min() > 150 > 50 > picture[:, 36:, 0].max()
    assert load_dataset("imagenet100", str(tmp_path), 32).size == 32


def test_grey_pictures_stay_grey_unless_one_is_in_colour(tmp_path: Path) -> None:
    write.image_folder(tmp_path / "grey", GREY, TEN)
    assert load_dataset("files", str(tmp_path / "grey")).channels == 1
    write.image_folder(tmp_path / "mixed", GREY, TEN)
    red = np.zeros((28, 28, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
    Image.fromarray(red).save(tmp_path / "mixed" / "test" / TEN[9] / "z.png")
    images = load_dataset("files", str(tmp_path / "mixed"))
    assert images.train.shape[-1] == images.test.shape[-1] == 3
    assert images.test[-1, 0, 0].tolist() == [255, 0, 0]
    assert (images.train[..., 0] == images.train[..., 2]).all()
