from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from flfa_app.data.cache import cache_folder
from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.test_formats import COLOUR, assert_same

EXTRA = write.arrays(5, 1, size=32, channels=3, classes=10)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A data set with everything one can have; in its folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    owners = np.array([f"écrivain {i % 3}" for i in range(20)])
    write.npz(folder / "cifar10.npz", COLOUR | {"train_writer": owners})
    np.save(folder / "cifar10.1_v6_data.npy", EXTRA["train_images"])
    np.save(folder / "cifar10.1_v6_labels.npy", EXTRA["train_labels"])
    return folder


def load(source: Path, name: str = "cifar10") -> object:
    """As another process would: without the memory of this one."""
    load_dataset.cache_clear()
    return load_dataset(name, str(source))


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_the_cache_is_the_source(source: Path, cache: Path) -> None:
    for _ in range(2):  # decoded, and read again
        images = load(source)
        assert_same(images, COLOUR)
        assert images.columns["writer"][:2].tolist() == ["écrivain 0", "écrivain 1"]
        extra, labels = images.extra_tests["cifar10.1-v6"]
        np.testing.assert_array_equal(extra, EXTRA["train_images"])
        np.testing.assert_array_equal(labels, EXTRA["train_labels"])
        pixels = COLOUR["train_images"].astype(float)
        np.testing.assert_allclose(images.mean, pixels.mean((0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(images.deviation, pixels.std((0, 1, 2)), rtol=1e-12)
        for array in (images.train, images.test, extra):
            assert isinstance(array, np.memmap)
            assert not array.flags.writeable
    assert len(entries(cache)) == 1


def test_what_is_cached_is_not_decoded_again(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(source)

    def decode(*args: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("flfa_app.data.loading._decode", decode)
    assert_same(load(source), COLOUR)
    with pytest.raises(AssertionError, match="decoded"):
        load_dataset("files", str(source / "cifar10.npz"))


def test_a_changed_source_is_decoded_again(source: Path, cache: Path) -> None:
    load(source)
    other = COLOUR | {"train_images": COLOUR["train_images"][::-1].copy()}
    write.npz(source / "cifar10.npz", other)
    assert_same(load(source), other)
    status = (source / "cifar10.npz").stat()
    os.utime(source / "cifar10.npz", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    load(source)
    assert len(entries(cache)) == 3


@pytest.mark.parametrize("file", ["train.npy", "test-labels.npy", "about.json"])
@pytest.mark.parametrize("harm", ["cut", "empty", "gone", "other"])
def test_a_damaged_cache_is_made_again(
    source: Path, cache: Path, caplog: pytest.LogCaptureFixture, file: str, harm: str
) -> None:
    load(source)
    (entry,) = entries(cache)
    path = entry / file
    content = path.read_bytes()
    path.unlink()
    if harm != "gone":
        other = (entry / "column-0.npy").read_bytes() if file != "about.json" else b"{}"
        path.write_bytes({"cut": content[:-9], "empty": b"", "other": other}[harm])
    with caplog.at_level("WARNING", logger="flwr"):
        assert_same(load(source), COLOUR)
    assert f"{entry} is damaged and is made again" in caplog.text
    assert path.read_bytes() == content


def test_what_a_killed_process_left_is_in_nobodys_way(
    source: Path, cache: Path
) -> None:
    load(source)
    (entry,) = entries(cache)
    partial = entry.with_name(entry.name + ".partial")
    entry.rename(partial)
    (partial / "test.npy").unlink()
    assert_same(load(source), COLOUR)
    assert entries(cache) == [entry]


def count(source: str, start: object, counts: object) -> None:
    from flfa_app.data import loading

    decode = loading._decode

    def counted(*args: object) -> object:
        with counts.get_lock():
            counts.value += 1
        time.sleep(0.5)  # long enough for the others to come
        return decode(*args)

    loading._decode = counted
    start.wait()
    assert_same(load_dataset("cifar10", source), COLOUR)


def test_many_processes_at_once_decode_once(source: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(3), context.Value("i", 0)
    workers = [
        context.Process(target=count, args=(str(source), start, counts))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert counts.value == 1
    assert len(entries(cache)) == 1


def hang_while_writing(source: str, reached: object) -> None:
    def hang(descriptor: int) -> None:
        reached.set()
        time.sleep(600)

    os.fsync = hang
    load_dataset("cifar10", source)


def test_a_process_killed_while_it_writes_leaves_nothing_half(
    source: Path, cache: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    reached = context.Event()
    worker = context.Process(target=hang_while_writing, args=(str(source), reached))
    worker.start()
    assert reached.wait(120)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    # Its lock is gone with it, and what it wrote has another name.
    assert [path.suffix for path in entries(cache)] == [".partial"]
    assert_same(load(source), COLOUR)
    assert [path.suffix for path in entries(cache)] == [""]


def test_a_folder_that_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("FLFA_CACHE", str(file / "flfa"))
    with pytest.raises(
        OSError, match=r"cannot be written to .*a file/flfa.*FLFA_CACHE"
    ):
        load(source)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLFA_CACHE", "~/x")
    assert cache_folder() == Path.home() / "x"
    monkeypatch.delenv("FLFA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/flfa")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "flfa"


def test_the_digits_need_no_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("FLFA_CACHE", "/dev/null/nowhere")
    load_dataset.cache_clear()
    assert len(load_dataset("digits").train) == 1438
