"""CIFAR-10 and CIFAR-100: pickled batches, in a folder or still in the archive."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.decoded import Decoded, Source, checked_labels, reading
from flfa_app.data.sources.cifar10_1 import find_cifar10_1, read_cifar10_1
from flfa_app.data.sources.named import find_anyhow, from_hub, missing

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
    source = _find(name, roots)
    extra = find_cifar10_1(roots[0]) if roots and name == "cifar10" else {}
    if not extra:
        return source
    files = tuple(path for pair in extra.values() for path in pair)

    def read() -> Decoded:
        return replace(source.read(), extra_tests=read_cifar10_1(extra))

    return replace(source, read=read, files=(*source.files, *files))


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
        return _unpickled(folder / wanted, (folder / wanted).read_bytes(), cure)

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
        lambda wanted: _unpickled(f"{archive}: {wanted}", members[wanted], cure),
    )


def _read(
    layout: _Layout, place: str, cure: str, content: Callable[[str], dict[str, Any]]
) -> Decoded:
    classes = len(layout.class_names)
    batches = [content(name) for name in (*layout.train, layout.test)]
    images, labels = [], []
    for name, batch in zip((*layout.train, layout.test), batches, strict=True):
        with reading(f"{place}{name}", cure):
            data, numbers = batch.get("data"), batch.get(layout.labels)
            if not _is_of_images(data):
                raise ValueError("it has no data of 3x32x32 bytes")
            if not isinstance(numbers, list):
                raise ValueError(f"it has no list {layout.labels}")
            # Raises as well if they are lists of several lengths.
            numbers = np.array(numbers)
            labels.append(checked_labels(numbers, len(data), classes, layout.labels))
        # A row is the red image, the green one and the blue one.
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


def _is_of_images(data: Any) -> TypeGuard[NDArray[np.uint8]]:
    return (
        isinstance(data, np.ndarray)
        and data.dtype == np.uint8
        and data.shape[1:] == (3072,)
        and len(data) > 0
    )


def _latin1(text: Any, encoding: Any) -> bytes:
    """Return the bytes that Python 3 writes as a text, below protocol 3."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(
            f"it asks for {encoding!r} of a {type(text).__name__}, not latin1 of a text"
        )
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """A pickle may call anything; these batches need bytes and NumPy's arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a batch may call; raise otherwise."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            module = "numpy.core.multiarray"
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which a batch of CIFAR has no use for"
            )
        return allowed[module, name]


def _unpickled(place: Path | str, content: bytes, cure: str) -> dict[str, Any]:
    with reading(place, cure):
        try:
            # Python 2 wrote them: its texts are bytes.
            batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        except (AttributeError, IndexError, KeyError, TypeError) as problem:
            # A cut or overwritten pickle is a program that goes wrong anywhere.
            raise ValueError(f"{type(problem).__name__}: {problem}") from problem
        if not isinstance(batch, dict):
            raise ValueError(f"it holds a {type(batch).__name__}, not a batch")
        return batch
