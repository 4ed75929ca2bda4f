from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import COLOUR, GREY, TEN, assert_same, photographs


def test_images_and_labels(tmp_path: Path) -> None:
    """Folders are read class by class."""
    write.image_folder(tmp_path, COLOUR, TEN)
    by_class = {}
    for part in ("train", "test"):
        labels = COLOUR[f"{part}_labels"]
        order = np.argsort(labels, kind="stable")
        by_class[f"{part}_images"] = COLOUR[f"{part}_images"][order]
        by_class[f"{part}_labels"] = labels[order]
    dataset = load_dataset("files", str(tmp_path))
    assert_same(dataset, by_class)
    assert dataset.class_names == tuple(TEN)


@pytest.mark.parametrize("size", [0, 28])
def test_folders_and_hidden_files_are_left_out(tmp_path: Path, size: int) -> None:
    write.image_folder(tmp_path, GREY, TEN)
    for part in ("train", "test"):
        (tmp_path / part / TEN[0] / "x.png").mkdir()
        (tmp_path / part / TEN[0] / "._0000.png").write_bytes(b"\0\5\x16\7")
        hidden = tmp_path / part / ".ipynb_checkpoints"
        hidden.mkdir()
        (hidden / "0-checkpoint.png").write_bytes(b"")
    dataset = load_dataset("files", str(tmp_path), size)
    assert len(dataset.train) == 30
    assert dataset.class_names == tuple(TEN)


def test_resized_images_of_every_mode(tmp_path: Path) -> None:
    """The first frame counts; a size that fits leaves the pixels unchanged."""
    grey = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    for part in ("train", "test"):
        folder = tmp_path / "grey" / part / "a"
        folder.mkdir(parents=True)
        grey.save(folder / "l.png")
        grey.convert("1").save(folder / "1.png")
        grey.save(folder / "s.tif", save_all=True, append_images=[grey.rotate(90)])
        folder = tmp_path / "colour" / part / "a"
        folder.mkdir(parents=True)
        grey.convert("P").save(folder / "p.png")
        grey.convert("RGBA").save(folder / "a.webp", lossless=True)
        grey.save(folder / "s.gif", save_all=True, append_images=[grey.rotate(90)])
    dataset = load_dataset("files", str(tmp_path / "grey"), 16)
    assert dataset.train.shape == (3, 16, 16, 1)
    assert set(dataset.train[0].flat) == {0, 255}
    for image in dataset.train[1:]:
        np.testing.assert_array_equal(image[..., 0], np.asarray(grey))
    dataset = load_dataset("files", str(tmp_path / "colour"), 16)
    for image in dataset.train:
        np.testing.assert_array_equal(image[..., 2], np.asarray(grey))


def test_images_stay_grey_unless_one_is_in_colour(tmp_path: Path) -> None:
    write.image_folder(tmp_path / "grey", GREY, TEN)
    assert load_dataset("files", str(tmp_path / "grey")).train.shape[-1] == 1
    write.image_folder(tmp_path / "mixed", GREY, TEN)
    red = np.zeros((28, 28, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
    Image.fromarray(red).save(tmp_path / "mixed" / "test" / TEN[9] / "z.png")
    dataset = load_dataset("files", str(tmp_path / "mixed"))
    assert dataset.train.shape[-1] == dataset.test.shape[-1] == 3
    assert dataset.test[-1, 0, 0].tolist() == [255, 0, 0]
    assert (dataset.train[..., 0] == dataset.train[..., 2]).all()


def test_different_sizes_need_image_size(tmp_path: Path) -> None:
    write.image_folder(tmp_path, COLOUR, TEN)
    small = write.arrays(1, 1, size=9, channels=3)["train_images"]
    write.class_folders(tmp_path / "train", small, np.array([1]), TEN)
    with pytest.raises(ValueError, match=r"has 9x9 pixels, .* 32x32; .*image-size"):
        load_dataset("files", str(tmp_path))
    assert load_dataset("files", str(tmp_path), 16).train.shape[1] == 16


def test_missing_folders_and_images(tmp_path: Path) -> None:
    photographs(tmp_path, {"train/a/0.png": (9, 9)})
    with pytest.raises(FileNotFoundError, match=r"neither test/ nor val/; each must"):
        load_dataset("files", str(tmp_path))
    (tmp_path / "test" / "a").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"test/a has no image .*; every class"):
        load_dataset("files", str(tmp_path))


@pytest.mark.parametrize(
    ("mode", "size", "kind"), [("I;16", 0, np.uint16), ("F", 8, np.float32)]
)
def test_more_than_eight_bits_are_refused(
    tmp_path: Path, mode: str, size: int, kind: type
) -> None:
    ramp = (np.arange(256) * 256).reshape(16, 16).astype(kind)
    for part in ("train", "test"):
        path = tmp_path / part / "a" / "deep.tif"
        path.parent.mkdir(parents=True)
        Image.fromarray(ramp).save(path)
    with pytest.raises(ValueError, match=f"Pillow's mode {mode}; save it") as caught:
        load_dataset("files", str(tmp_path), size)
    assert str(caught.value).startswith(str(tmp_path / "train" / "a" / "deep.tif has"))


def test_photograph_with_too_many_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pillow's limits are here 1,000 pixels for a warning and 2,000 for an error."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    photographs(tmp_path, {"train/a/0.png": (30, 30), "test/a/0.png": (40, 40)})
    with caplog.at_level("WARNING", logger="flwr"):
        assert load_dataset("files", str(tmp_path), 16).train.shape == (1, 16, 16, 3)
    large = tmp_path / "test" / "a" / "0.png"
    assert caplog.messages == [f"{large} is very large: 40x40 pixels"]
    photographs(tmp_path, {"train/a/1.png": (50, 50)})
    load_dataset.cache_clear()
    with pytest.raises(
        ValueError, match=r"train/a/1\.png is damaged: it has too many pixels .*smaller"
    ):
        load_dataset("files", str(tmp_path), 16)
