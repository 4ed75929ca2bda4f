from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write


def test_loading_again_reads_nothing() -> None:
    assert load_dataset("digits") is load_dataset("digits")


def test_other_sizes_than_image_size_are_refused(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "own.npz", write.GREY)
    assert load_dataset("files", str(path), 28).train.shape[1] == 28
    with pytest.raises(
        ValueError, match=r"image-size is 32, but .* are 28x28, and only image folders"
    ):
        load_dataset("files", str(path), 32)


@pytest.mark.parametrize(
    ("name", "file", "url"),
    [
        ("bloodmnist", "bloodmnist.npz", "https://zenodo.org/"),
        ("fashionmnist", "train-images-idx3-ubyte", "https://github.com/zalando"),
        ("cifar10", "cifar-10-python.tar.gz", "https://www.cs.toronto.edu"),
        ("cifar100", "cifar-100-python/", "https://www.cs.toronto.edu"),
        ("imagenet100", "classes.txt", "https://www.image-net.org"),
        ("files", "an .npz file, a folder written by", ""),
    ],
)
def test_missing_files_are_named_with_folder_and_url(
    tmp_path: Path, offline: None, name: str, file: str, url: str
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(name, str(folder))
    for text in (file, str(folder), url):
        assert text in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["imagenet100", "files"])
def test_data_dir_is_required(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="data-dir is empty; set it to "):
        load_dataset(name)
