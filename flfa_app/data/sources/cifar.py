"""CIFAR-10 and CIFAR-100: pickled batches, in a folder or still in the archive."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.formats.batches import PickledArray, read_batch
from flfa_app.data.sources.cifar10_1 import find_cifar10_1, read_cifar10_1
from flfa_app.data.sources.named import expecting, find_anyhow, from_hub, missing
from flfa_app.data.validation import Decoded, Source, checked_labels, reading

__all__ = ["find_cifar"]


class _Layout(NamedTuple):
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    labels: str
    meta: str
    meta_key: str
    class_names: tuple[str, ...]
    hub: str

    @property
    def files(self) -> tuple[str, ...]:
        return *self.train, self.test, self.meta


_SHAPE = 32, 3
_COARSE = 20  # classes of CIFAR-100 that have five others each
_PLACE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        labels="labels",
        meta="batches.meta",
        meta_key="label_names",
        class_names=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
        hub="uoft-cs/cifar10",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        train=("train",),
        test="test",
        labels="fine_labels",
        meta="meta",
        meta_key="fine_label_names",
        # The names are in the file `meta`; other formats may not have them.
        class_names=tuple(str(i) for i in range(100)),
        hub="uoft-cs/cifar100",
    ),
}


def find_cifar(name: str, data_dir: str, image_size: int) -> Source:
    """Find the batches; CIFAR-10.1 beside those of CIFAR-10 is a further test set."""
    roots = [Path(data_dir).expanduser()] if data_dir else []
    size, channels = _SHAPE
    source = expecting(_find(name, roots), name, size, channels)
    if name == "cifar100":
        source = replace(source, read=partial(_fine, source))
    extra = find_cifar10_1(roots[0]) if roots and name == "cifar10" else {}
    if not extra:
        return source
    files = tuple(path for pair in extra.values() for path in pair)

    def read() -> Decoded:
        return replace(source.read(), extra_tests=read_cifar10_1(extra))

    return replace(source, read=read, files=(*source.files, *files))


def _fine(source: Source) -> Decoded:
    """Read CIFAR-100; raise if it is CIFAR-10, or has the coarse labels.

    Both fit a hundred classes, most of which would then have no image.
    """
    found = source.read()
    largest = max(found.train_labels.max(), found.test_labels.max())
    if largest < _COARSE:
        raise ValueError(
            f"{source.place} is not cifar100: its labels are from 0 to {largest}, as "
            "those of CIFAR-10 or the coarse ones of CIFAR-100; set dataset to "
            f"'cifar10', or data-dir to the fine labels ({_PLACE}), or dataset to "
            "'files' and data-dir to this one"
        )
    return found


def _find(name: str, roots: list[Path]) -> Source:
    layout = _LAYOUTS[name]
    cure = f"delete it and download {layout.archive} again from {_PLACE}"
    for root in roots:
        folders = root / layout.folder, root
        for folder in folders:
            if not _absent(folder, layout):
                return _in_folder(folder, layout, cure)
        if (archive := root / layout.archive).is_file():
            read = partial(_read_archive, archive, layout, cure)
            return Source(str(archive), cure, read, files=(archive,))
        if source := find_anyhow(name, root, layout.class_names, cure):
            return source
        for folder in folders:
            absent = _absent(folder, layout)
            if len(absent) < len(layout.files) or (
                folder.name == layout.folder and folder.is_dir()
            ):
                raise FileNotFoundError(
                    f"{', '.join(map(str, absent))} is missing; unpack "
                    f"{layout.archive} again ({_PLACE})"
                )
    get = f"download {layout.archive} from {_PLACE}"
    text = missing(name, [f"{layout.folder}/", layout.archive], roots, get)
    return from_hub(name, layout.hub, layout.class_names, text)


def _absent(folder: Path, layout: _Layout) -> list[Path]:
    paths = (folder / file for file in layout.files)
    return [path for path in paths if not path.is_file()]


def _in_folder(folder: Path, layout: _Layout, cure: str) -> Source:
    files = tuple(folder / file for file in layout.files)

    def content(wanted: str) -> dict[str, Any]:
        return read_batch(folder / wanted, (folder / wanted).read_bytes(), cure)

    read = partial(_read, layout, f"{folder}/", cure, content)
    return Source(str(folder), cure, read, files)


def _read_archive(archive: Path, layout: _Layout, cure: str) -> Decoded:
    # Nothing is unpacked to the disk: a member's path could lead anywhere. All of it is
    # unzipped, because the checksum is at the end.
    with reading(archive, cure):
        content = gzip.decompress(archive.read_bytes())
        members = {}
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for wanted in layout.files:
                member = tar.extractfile(f"{layout.folder}/{wanted}")
                if member is None:
                    raise ValueError(f"{layout.folder}/{wanted} in it is not a file")
                members[wanted] = member.read()
    return _read(
        layout,
        f"{archive}: ",
        cure,
        lambda wanted: read_batch(f"{archive}: {wanted}", members[wanted], cure),
    )


def _read(
    layout: _Layout, place: str, cure: str, content: Callable[[str], dict[str, Any]]
) -> Decoded:
    classes = len(layout.class_names)
    batches = [content(name) for name in (*layout.train, layout.test)]
    images, labels = [], []
    for name, batch in zip((*layout.train, layout.test), batches, strict=True):
        with reading(f"{place}{name}", cure):
            data, numbers = _rows(batch.get("data")), batch.get(layout.labels)
            if not isinstance(numbers, list):
                raise ValueError(f"it has no list {layout.labels}")
            # Raises as well if they are lists of several lengths.
            numbers = np.array(numbers)
            labels.append(checked_labels(numbers, len(data), classes, layout.labels))
        images.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    names = content(layout.meta).get(layout.meta_key)
    with reading(f"{place}{layout.meta}", cure):
        if not isinstance(names, list) or len(names) != classes:
            raise ValueError(f"it has no list {layout.meta_key} of {classes} names")
    return Decoded(
        np.concatenate(images[:-1]),
        np.concatenate(labels[:-1]),
        images[-1],
        labels[-1],
        tuple(str(name) for name in names),
    )


def _rows(data: Any) -> NDArray[np.uint8]:
    """Return the images of a batch, one in a row: red, then green, then blue."""
    needed = "it has no data of 3x32x32 bytes"
    if not isinstance(data, PickledArray):
        raise ValueError(needed)
    try:
        rows = data.array()
    except ValueError as problem:
        raise ValueError(f"{needed}: {problem}") from problem
    if rows.shape[1:] != (3072,) or len(rows) == 0:
        raise ValueError(needed)
    return rows
