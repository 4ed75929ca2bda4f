"""The cache returns what was decoded or drawn, and survives damage."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.data import cache as cache_module
from flfa_app.data.cache import cache_folder, cached_dataset, cached_partition
from flfa_app.data.dataset import ImageDataset
from flfa_app.data.loading import load_dataset
from flfa_app.data.partition import partition_indices
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import COLOUR, assert_same

EXTRA = write.arrays(5, 1, size=32, channels=3, classes=10)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a data set that has columns and a further test set."""
    folder = tmp_path / "source"
    folder.mkdir()
    owners = np.array([f"écrivain {i % 3}" for i in range(20)])
    write.npz(folder / "cifar10.npz", COLOUR | {"train_writer": owners})
    np.save(folder / "cifar10.1_v6_data.npy", EXTRA["train_images"])
    np.save(folder / "cifar10.1_v6_labels.npy", EXTRA["train_labels"])
    return folder


def load(source: Path) -> ImageDataset:
    """Load like another process: without the memory of this one."""
    load_dataset.cache_clear()
    return load_dataset("cifar10", str(source))


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_cached_dataset_equals_the_source(source: Path, cache: Path) -> None:
    for _ in range(2):  # decoded, and loaded again
        dataset = load(source)
        assert_same(dataset, COLOUR)
        assert dataset.columns["writer"][:2].tolist() == ["écrivain 0", "écrivain 1"]
        extra, labels = dataset.extra_tests["cifar10.1-v6"]
        np.testing.assert_array_equal(extra, EXTRA["train_images"])
        np.testing.assert_array_equal(labels, EXTRA["train_labels"])
        pixels = COLOUR["train_images"].astype(float)
        np.testing.assert_allclose(dataset.mean, pixels.mean((0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(dataset.deviation, pixels.std((0, 1, 2)), rtol=1e-12)
        for array in (dataset.train, dataset.test, extra):
            assert isinstance(array, np.memmap)
            assert not array.flags.writeable
    assert len(entries(cache)) == 1


def test_cached_dataset_is_not_decoded_again(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(source)

    def decode(*args: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("flfa_app.data.loading.validate_dataset", decode)
    assert_same(load(source), COLOUR)
    with pytest.raises(AssertionError, match="decoded"):
        load_dataset("files", str(source / "cifar10.npz"))


def test_changed_source_is_decoded_again(source: Path, cache: Path) -> None:
    """Another content, and another modification time."""
    load(source)
    other = COLOUR | {"train_images": COLOUR["train_images"][::-1].copy()}
    write.npz(source / "cifar10.npz", other)
    assert_same(load(source), other)
    status = (source / "cifar10.npz").stat()
    os.utime(source / "cifar10.npz", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    load(source)
    assert len(entries(cache)) == 3


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train.npy", "cut"),
        ("train.npy", "header"),
        ("train.npy", "another array"),
        ("test-labels.npy", "empty"),
        ("about.json", "missing"),
        ("about.json", "another"),
    ],
)
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
def test_damaged_entry_is_made_again(
    source: Path, cache: Path, caplog: pytest.LogCaptureFixture, file: str, damage: str
) -> None:
    load(source)
    (entry,) = entries(cache)
    path = entry / file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        damaged = {
            "cut": content[:-9],
            "header": content.replace(b"{'", b"{("),
            "another array": (entry / "column-0.npy").read_bytes(),
            "empty": b"",
            "another": b"{}",
        }
        path.write_bytes(damaged[damage])
    with caplog.at_level("WARNING", logger="flwr"):
        assert_same(load(source), COLOUR)
    assert f"{entry} is damaged and is made again" in caplog.text
    assert path.read_bytes() == content


class MakesFolder:
    """Makes a folder if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (self.path,)


def test_pickles_in_the_cache_are_not_executed(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    load(source)
    (entry,) = entries(cache)
    hostile = np.array([MakesFolder(tmp_path / "executed")], object)
    np.save(entry / "train-labels.npy", hostile, allow_pickle=True)
    assert_same(load(source), COLOUR)
    parts = cached_partition(np.arange(20), 2, **IID)
    (file,) = cache.glob("partition-*.npz")
    np.savez(file, indices=hostile, sizes=np.array([1]))
    assert same_parts(cached_partition(np.arange(20), 2, **IID), parts)
    assert not (tmp_path / "executed").exists()


def test_objects_are_not_pickled_into_the_cache(source: Path, cache: Path) -> None:
    objects = {"writer": np.array([None] * 20, object)}
    dataset = replace(load(source), columns=objects)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        cached_dataset("objects", 0, [], "", lambda: dataset)
    (left,) = (path for path in entries(cache) if path.name.startswith("objects"))
    assert left.suffix == ".partial"


def test_everything_is_on_the_disk_before_the_entry_has_its_name(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is flushed whole, then both folders, the outer after the rename."""
    flushed: dict[int, int] = {}
    order = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        flushed[status.st_ino] = status.st_size
        order.append([path.suffix for path in entries(cache)])

    monkeypatch.setattr(os, "fsync", fsync)
    load(source)
    (entry,) = entries(cache)
    for file in entry.iterdir():
        assert flushed.pop(file.stat().st_ino) == file.stat().st_size
    assert set(flushed) == {entry.stat().st_ino, cache.stat().st_ino}
    assert order == [[".partial"]] * (len(order) - 1) + [[""]]


def test_interrupted_writing_leaves_no_incomplete_entry(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(source)
    monkeypatch.undo()
    monkeypatch.setenv("FLFA_CACHE", str(cache))
    assert [path.suffix for path in entries(cache)] == [".partial"]
    assert_same(load(source), COLOUR)
    assert [path.suffix for path in entries(cache)] == [""]


def test_only_one_of_several_decodes(source: Path, cache: Path) -> None:
    """Each thread has its own file lock, like a process."""
    dataset, decoded = load(source), []

    def decode() -> ImageDataset:
        decoded.append(1)
        time.sleep(0.3)  # long enough for the others to arrive
        return dataset

    with ThreadPoolExecutor(3) as pool:
        calls = [
            pool.submit(cached_dataset, "shared", 0, [], "", decode) for _ in range(3)
        ]
    for call in calls:
        assert_same(call.result(), COLOUR)
    assert len(decoded) == 1


def test_read_only_cache_is_read(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(source)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(cache_module, "FileLock", refuse)
    assert_same(load(source), COLOUR)


def test_unwritable_cache_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("FLFA_CACHE", str(tmp_path / "a file" / "flfa"))
    with pytest.raises(OSError, match=r"written to .*a file/flfa.*FLFA_CACHE"):
        load(source)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLFA_CACHE", "~/x")
    assert cache_folder() == Path.home() / "x"
    monkeypatch.delenv("FLFA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/flfa")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "flfa"


def test_digits_need_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLFA_CACHE", "/dev/null/nowhere")
    load_dataset.cache_clear()
    assert len(load_dataset("digits").train) == 1438


LABELS = np.arange(200) % 10
DIRICHLET = {"partitioner": "dirichlet", "beta": 0.5, "min_size": 1, "seed": 0}
IID = DIRICHLET | {"partitioner": "iid"}


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets one item for each partition that is drawn; each is another one."""
    drawn: list[int] = []

    def draw(*args: Any, **settings: Any) -> Any:
        drawn.append(1)
        return np.arange(len(drawn)), np.arange(3)

    monkeypatch.setattr(cache_module, "partition_indices", draw)
    return drawn


def same_parts(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("settings", [DIRICHLET, IID])
def test_cached_partition_equals_the_drawn_one(settings: dict[str, Any]) -> None:
    expected = partition_indices(LABELS, 10, **settings)
    for _ in range(2):
        assert same_parts(cached_partition(LABELS, 10, **settings), expected)


def test_every_argument_is_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch, draws: list[int]
) -> None:
    owners = np.array(["a", "b"] * 100)
    calls: list[tuple[Any, int, dict[str, Any]]] = [
        (LABELS, 10, DIRICHLET),
        (LABELS[::-1], 10, DIRICHLET),
        (LABELS, 11, DIRICHLET),
        (LABELS, 10, DIRICHLET | {"seed": 1}),
        (LABELS, 10, DIRICHLET | {"beta": 0.6}),
        (LABELS, 10, DIRICHLET | {"min_size": 2}),
        (LABELS, 10, IID),
        (LABELS, 10, DIRICHLET | {"owners": owners}),
        (LABELS, 10, DIRICHLET | {"owners": owners[::-1]}),
    ]
    for _ in range(2):
        for number, (labels, clients, settings) in enumerate(calls, 1):
            assert len(cached_partition(labels, clients, **settings)[0]) == number
    # Other versions of the libraries may draw another partition.
    monkeypatch.setattr(cache_module, "version", lambda name: "0")
    cached_partition(LABELS, 10, **DIRICHLET)
    assert len(draws) == len(calls) + 1


@pytest.mark.parametrize("damage", ["empty", "half", "cut"])
def test_damaged_partition_is_drawn_again(
    damage: str, draws: list[int], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cached_partition(LABELS, 2, **DIRICHLET)
    (file,) = cache.glob("partition-*.npz")
    damaged = {"empty": b"", "half": b"PK half", "cut": file.read_bytes()[:-30]}
    file.write_bytes(damaged[damage])
    with caplog.at_level("WARNING", logger="flwr"):
        assert len(cached_partition(LABELS, 2, **DIRICHLET)[0]) == 2
    assert f"{file} is damaged and is made again" in caplog.text
    assert len(cached_partition(LABELS, 2, **DIRICHLET)[0]) == 2
    assert [path.name for path in cache.iterdir()] == [file.name]


def test_without_a_cache_the_partition_is_drawn(
    monkeypatch: pytest.MonkeyPatch, draws: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLFA_CACHE", "/dev/null/nowhere")
    with caplog.at_level("WARNING", logger="flwr"):
        assert len(cached_partition(LABELS, 2, **DIRICHLET)) == 2
    assert "partition cannot be cached in /dev/null/nowhere" in caplog.text
    assert "damaged" not in caplog.text


def test_impossible_partition_is_not_cached(cache: Path) -> None:
    with pytest.raises(ValueError, match="min-partition-size"):
        cached_partition(LABELS, 10, **DIRICHLET | {"min_size": 1000})
    assert not list(cache.glob("partition-*"))
