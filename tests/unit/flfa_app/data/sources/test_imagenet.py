from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data.write import photographs


def folders(root: Path, names: tuple[str, ...], images: int = 1) -> None:
    paths = [
        f"{part}/{name}/{i}.JPEG"
        for part in ("train", "val")
        for name in names
        for i in range(images)
    ]
    photographs(
        root, {path: [(100, 80), (70, 200)][i % 2] for i, path in enumerate(paths)}
    )


def test_listed_classes_are_used_in_their_order(tmp_path: Path) -> None:
    """Images get 64 pixels a side, or the requested size."""
    folders(tmp_path, ("n01", "n02", "n03"), images=2)
    (tmp_path / "classes.txt").write_text("n03\nn01\n\n")
    dataset = load_dataset("imagenet100", str(tmp_path))
    assert dataset.train.shape == dataset.test.shape == (4, 64, 64, 3)
    assert dataset.class_names == ("n03", "n01")
    assert dataset.train_labels.tolist() == [0, 0, 1, 1]
    # The middle was cropped: as much red as blue.
    for image in dataset.train:
        assert image[:, :28, 0].min() > 150 > 50 > image[:, :28, 2].max()
        assert image[:, 36:, 2].min() > 150 > 50 > image[:, 36:, 0].max()
    assert load_dataset("imagenet100", str(tmp_path), 32).train.shape[1] == 32


def test_order_of_the_list_is_part_of_the_cache_key(tmp_path: Path) -> None:
    """One image of n01, two of n02, listed in both orders."""
    folders(tmp_path, ("n01", "n02"))
    photographs(tmp_path, {"train/n02/1.JPEG": (64, 64)})
    for text, counts in (("n01\nn02\n", [1, 2]), ("n02\nn01\n", [2, 1])):
        (tmp_path / "classes.txt").write_text(text)
        load_dataset.cache_clear()
        dataset = load_dataset("imagenet100", str(tmp_path))
        assert dataset.class_names == tuple(text.split())
        assert np.bincount(dataset.train_labels).tolist() == counts


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_byte_order_mark_is_not_part_of_a_name(tmp_path: Path, encoding: str) -> None:
    names = ("épagneul", "chat")
    folders(tmp_path, names)
    (tmp_path / "classes.txt").write_text("\n".join(names), encoding=encoding)
    assert load_dataset("imagenet100", str(tmp_path), 8).class_names == names


def test_wrong_lists(tmp_path: Path) -> None:
    folders(tmp_path, ("a",))
    path = tmp_path / "classes.txt"
    with pytest.raises(FileNotFoundError, match=r"classes\.txt is missing; imagenet1"):
        load_dataset("imagenet100", str(tmp_path))
    for content, error, message in (
        (b"a\nn99\n", FileNotFoundError, "train/n99 has no image"),
        (b"a\na\n", ValueError, r"classes\.txt names a more than once"),
        (b"\n", ValueError, r"classes\.txt names no class"),
        (
            b"\xe9pagneul",
            ValueError,
            r"classes\.txt is damaged: .*utf-8.* byte 0xe9.*s",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(error, match=message):
            load_dataset("imagenet100", str(tmp_path))
