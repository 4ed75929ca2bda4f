from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import assert_same

ORGANS = write.arrays(30, 20, classes=11)


def test_official_file(tmp_path: Path, offline: None) -> None:
    """Labels are a column; nothing is downloaded."""
    data = {k: v[:, None] if "labels" in k else v for k, v in ORGANS.items()}
    write.npz(tmp_path / "organcmnist.npz", data)
    dataset = load_dataset("organcmnist", str(tmp_path))
    assert_same(dataset, data)
    assert dataset.class_names[0] == "bladder"


def test_file_name_of_another_data_set(tmp_path: Path) -> None:
    """The three sets of organs have the same form."""
    path = write.npz(tmp_path / "organsmnist.npz", ORGANS)
    with pytest.raises(ValueError, match="set dataset to 'organsmnist', or data-dir"):
        load_dataset("organcmnist", str(path))
    assert len(load_dataset("organsmnist", str(path)).class_names) == 11


def test_another_number_of_classes(tmp_path: Path) -> None:
    write.npz(tmp_path / "organcmnist.npz", write.arrays(30, 20, classes=10))
    with pytest.raises(ValueError, match=r"is not organcmnist: .* and 10 classes"):
        load_dataset("organcmnist", str(tmp_path))


def test_failed_download_leaves_no_folder(tmp_path: Path, offline: None) -> None:
    """A typing error in data-dir creates neither the folder nor its parents."""
    wrong = tmp_path / "tyop" / "medmnist"
    with pytest.raises(FileNotFoundError, match=f"no bloodmnist.npz, .* in {wrong}; "):
        load_dataset("bloodmnist", str(wrong))
    assert not (tmp_path / "tyop").exists()
