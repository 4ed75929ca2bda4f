from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import GREY, assert_same


@pytest.mark.parametrize(
    ("folder", "suffix"),
    [("", ".gz"), ("", ""), ("FashionMNIST/raw", ""), ("raw", ".gz")],
)
def test_idx_files(tmp_path: Path, folder: str, suffix: str) -> None:
    """Compressed or not, also in torchvision's folders."""
    write.fashion(tmp_path / folder, GREY, suffix)
    dataset = load_dataset("fashionmnist", str(tmp_path))
    assert_same(dataset, GREY)
    assert dataset.class_names[9] == "Ankle boot"


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    write.fashion(tmp_path, GREY)[3].unlink()
    with pytest.raises(
        FileNotFoundError, match=r"but not t10k-labels-idx1-ubyte .*https://github.com"
    ):
        load_dataset("fashionmnist", str(tmp_path))


IDX: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "too short": (
        lambda x: x[:-1],
        "15,695 bytes; by its header it should have 15,696",
    ),
    "too long": (lambda x: x + b"\0", "15,697 bytes; by its header it should have"),
    "ends in its header": (lambda x: x[:9], "ends after 9 bytes, in its header"),
    "labels": (
        lambda x: b"\0\0\x08\x01" + x[4:],
        "begins with 00000801; an idx file with 3 dim.* begins with 00000803",
    ),
    "floats": (lambda x: b"\0\0\x0d\x03" + x[4:], "begins with 00000d03"),
    "empty": (lambda x: b"", "begins with nothing"),
    "absurd lengths": (lambda x: x[:4] + b"\xff" * 12 + x[16:], "should have 79,228,"),
}


@pytest.mark.parametrize("case", IDX)
def test_wrong_idx_files(tmp_path: Path, case: str) -> None:
    change, message = IDX[case]
    path = write.fashion(tmp_path, GREY, "")[2]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(
        ValueError, match=f"t10k-images.* is damaged: .*{message}.*; delete it and"
    ):
        load_dataset("fashionmnist", str(tmp_path))
