"""Files that make a library fail in an unusual way are named like all others."""

from __future__ import annotations

import io
import pickle
import random
import re
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from datasets import Image as ImageColumn
from PIL import Image

from flfa_app.data.cache import cached_partition
from flfa_app.data.formats.cifar_pickle import PickledArray, read_batch
from flfa_app.data.loading import load_dataset
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.test_cache import entries
from tests.unit.flfa_app.data.test_formats import COLOUR, GREY, assert_same, photographs

# Places in an entry of a zip's directory, by the format's description.
FLAGS, METHOD = 8, 10


def change_entries(path: Path, place: int, value: int) -> None:
    """Write a two-byte number into every entry of the directory of a zip."""
    content = bytearray(path.read_bytes())
    for found in re.finditer(b"PK\x01\x02", bytes(content)):
        struct.pack_into("<H", content, found.start() + place, value)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (METHOD, 99, "compression method is not supported"),
        (FLAGS, 1, "encrypted"),
    ],
)
def test_an_archive_with_a_changed_directory(
    tmp_path: Path, place: int, value: int, message: str
) -> None:
    path = write.npz(tmp_path / "own.npz", GREY)
    change_entries(path, place, value)
    with pytest.raises(
        ValueError, match=f"own.npz is damaged: .*{message}.*; write it"
    ):
        load_dataset("files", str(path))


def test_an_archive_packed_in_another_way(tmp_path: Path) -> None:
    """LZMA is read like any other, and has errors of its own."""
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for key, array in GREY.items():
            archive.writestr(f"{key}.npy", with_header(array, "|u1", "|u1"))
    assert_same(load_dataset("files", str(path)), GREY)
    content = bytearray(path.read_bytes())
    content[200:1200] = b"\xff" * 1_000  # among the pixels of the first array
    path.write_bytes(content)
    load_dataset.cache_clear()
    with pytest.raises(ValueError, match=r"own\.npz is damaged: .*; write it again"):
        load_dataset("files", str(path))


def with_header(array: np.ndarray, old: str, new: str) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    content = buffer.getvalue()
    assert old.encode() in content
    return content.replace(old.encode(), new.encode())


def test_an_archive_that_asks_for_more_memory_than_there_is(tmp_path: Path) -> None:
    """Its header speaks of 10**15 images of 784 bytes."""
    path = write.npz(tmp_path / "own.npz", GREY)
    huge = with_header(GREY["train_images"], "(30, ", "(1000000000000000, ")
    # The length of the header, less what the number is longer by in spaces.
    huge = huge.replace(b" " * 14 + b"\n", b"\n", 1)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images.npy", huge)
        for key in ("train_labels", "test_images", "test_labels"):
            archive.writestr(f"{key}.npy", with_header(GREY[key], "|u1", "|u1"))
    with pytest.raises(ValueError, match=r"own\.npz is damaged: it asks for more mem"):
        load_dataset("files", str(path))


def test_an_archive_with_something_else_than_arrays(tmp_path: Path) -> None:
    path = write.npz(tmp_path / "own.npz", GREY)
    with zipfile.ZipFile(path, "w") as archive:
        for key in GREY:
            archive.writestr(key, "a text")
    with pytest.raises(ValueError, match=r"own\.npz is damaged: train_images in it is"):
        load_dataset("files", str(path))


def test_a_place_in_the_archive_before_its_beginning(tmp_path: Path) -> None:
    """A seek there is an error of the system, which does not know the file's name."""
    path = write.npz(tmp_path / "own.npz", GREY)
    content = bytearray(path.read_bytes())
    # The directory is said to begin later than it does, so the members begin earlier.
    place = content.rindex(b"PK\x05\x06") + 16
    (begin,) = struct.unpack_from("<I", content, place)
    struct.pack_into("<I", content, place, begin + 1_000)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.npz (is damaged|cannot be read): "):
        load_dataset("files", str(path))


@pytest.mark.parametrize(("old", "new"), [("{'", "{("), ("}", "{")])
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
def test_cifar10_1_with_a_changed_header(tmp_path: Path, old: str, new: str) -> None:
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    np.save(tmp_path / "cifar10.1_v4_labels.npy", COLOUR["train_labels"])
    path = tmp_path / "cifar10.1_v4_data.npy"
    path.write_bytes(with_header(COLOUR["train_images"], old, new))
    with pytest.raises(
        ValueError, match=r"v4_data\.npy is damaged: .*download it again from .*modest"
    ):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
def test_a_changed_header_in_the_caches(tmp_path: Path, cache: Path) -> None:
    """Both are made again, as after any other damage."""
    write.npz(tmp_path / "cifar10.npz", COLOUR)
    assert_same(load_dataset("cifar10", str(tmp_path)), COLOUR)
    (entry,) = entries(cache)
    (entry / "train.npy").write_bytes(with_header(COLOUR["train_images"], "{'", "{("))
    load_dataset.cache_clear()
    assert_same(load_dataset("cifar10", str(tmp_path)), COLOUR)
    settings: dict[str, Any] = {"partitioner": "iid", "beta": 1.0, "min_size": 1}
    labels = np.arange(20) % 10
    parts = cached_partition(labels, 2, seed=1, **settings)
    (file,) = cache.glob("partition-*.npz")
    change_entries(file, METHOD, 99)
    for again, part in zip(
        cached_partition(labels, 2, seed=1, **settings), parts, strict=True
    ):
        assert again.tolist() == part.tolist()


def batch(**content: Any) -> bytes:
    rows = write.rows(COLOUR["train_images"][:2])
    return pickle.dumps({"data": rows, "labels": [3, 4]} | content, protocol=2)


def test_the_flags_of_a_type_are_passed_over(tmp_path: Path) -> None:
    """Bytes have none; NumPy would fail with them, or take the content for objects."""
    before = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK"
    content = batch()
    assert content.count(before + b"\x00") == 1
    content = content.replace(before + b"\x00", before + b"\x3f")
    found = read_batch("a batch", content, "cure")
    np.testing.assert_array_equal(
        found["data"].array(), write.rows(COLOUR["train_images"][:2])
    )


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_of_either_order(order: str) -> None:
    """The rows are (0, 1, 2) and (3, 4, 5), whichever is written first."""
    array = np.array([[0, 1, 2], [3, 4, 5]], np.uint8, order=order)
    found = read_batch("a batch", batch(data=array), "cure")["data"].array()
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "no shape, type and content"),
        ((1, (2,), np.dtype("u1"), False), "no shape, type and content"),
        ((1, (2,), "u1", False, b"ab"), "not of bytes"),
        ((1, (2,), np.dtype("O"), False, [None, None]), "not of bytes"),
        ((1, (2,), np.dtype("u1"), False, ["a", "b"]), "content of an array"),
        ((1, (-1, -2), np.dtype("u1"), False, b"ab"), r"shape .* is \(-1, -2\)"),
        ((1, 2, np.dtype("u1"), False, b"ab"), "shape of an array in it is 2"),
        ((1, (2**40, 3072), np.dtype("u1"), False, b"ab"), "has 2 bytes for the shape"),
    ],
)
def test_an_array_that_is_none(tmp_path: Path, state: Any, message: str) -> None:
    class Array:
        def __reduce__(self) -> tuple[Any, ...]:
            empty = np.empty(0).__reduce__()
            return (*empty[:2], state) if state else empty[:2]

    path = write.cifar(tmp_path, "cifar10", COLOUR) / "data_batch_2"
    path.write_bytes(batch(data=Array()))
    with pytest.raises(
        ValueError, match=f"data_batch_2 is damaged: it has no data .*{message}.*; dele"
    ):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_with_any_bytes_changed_is_read_or_named(seed: int) -> None:
    """No other error, no crash of Python, no memory for numbers that are not meant.

    The changed bytes are those before and after the pixels, where the program is.
    """
    draw = random.Random(seed)
    content = batch()
    program = [*range(250), *range(len(content) - 80, len(content))]
    for _ in range(1_000):
        changed = bytearray(content)
        for place in draw.choices(program, k=draw.randint(1, 3)):
            changed[place] = draw.randrange(256)
        with suppress(ValueError):
            data = read_batch("a batch", bytes(changed), "cure").get("data")
            if isinstance(data, PickledArray):
                data.array()


def test_a_batch_cannot_ask_for_memory() -> None:
    """A bytearray of 2**40 bytes; and the place 2**32 - 1 in a list of what was read.

    The second is harmless where what was read is kept by its number.
    """
    length = pickle.BYTEARRAY8 + struct.pack("<Q", 2**40)
    with pytest.raises(ValueError, match="a batch is damaged"):
        read_batch("a batch", pickle.PROTO + b"\x05" + length, "cure")
    far = pickle.LONG_BINPUT + struct.pack("<I", 2**32 - 1)
    assert read_batch("a batch", b"\x80\x02}" + far + b".", "cure") == {}


def test_a_photograph_with_too_many_pixels(
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


def saved_pictures(folder: Path, pictures: list[Any]) -> str:
    table = Dataset.from_dict({"image": pictures, "label": [0] * len(pictures)})
    table = table.cast_column("image", ImageColumn())
    DatasetDict(train=table, test=table).save_to_disk(folder)
    return str(folder)


def test_a_saved_folder_with_a_null_image(tmp_path: Path) -> None:
    pictures = [Image.fromarray(GREY["train_images"][0]), None]
    with pytest.raises(
        ValueError, match=r"own is damaged: image 1 is null; .*; write it again"
    ):
        load_dataset("files", saved_pictures(tmp_path / "own", pictures))


def test_a_saved_folder_with_too_many_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [Image.new("L", (30, 30)), Image.new("L", (50, 50))]
    path = saved_pictures(tmp_path / "own", pictures)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    with pytest.raises(ValueError, match="own is damaged: image 1 has too many pixels"):
        load_dataset("files", path)


def test_a_saved_folder_whose_list_of_files_is_another(tmp_path: Path) -> None:
    folder = write.saved(tmp_path / "own", GREY)
    (folder / "train" / "state.json").write_text("[]")
    with pytest.raises(ValueError, match=r"own is damaged: .*; write it again"):
        load_dataset("files", str(folder))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_list_of_classes_with_a_mark_at_its_beginning(
    tmp_path: Path, encoding: str
) -> None:
    names = ("épagneul", "chat")
    photographs(
        tmp_path, {f"{s}/{n}/0.png": (9, 9) for s in ("train", "val") for n in names}
    )
    (tmp_path / "classes.txt").write_text("\n".join(names), encoding=encoding)
    assert load_dataset("imagenet100", str(tmp_path), 8).class_names == names


def test_a_list_of_classes_that_is_no_text(tmp_path: Path) -> None:
    photographs(tmp_path, {f"{s}/a/0.png": (9, 9) for s in ("train", "val")})
    (tmp_path / "classes.txt").write_bytes("épagneul".encode("latin1"))
    with pytest.raises(
        ValueError, match=r"classes\.txt is damaged: .*utf-8.* byte 0xe9.*save it as te"
    ):
        load_dataset("imagenet100", str(tmp_path))
