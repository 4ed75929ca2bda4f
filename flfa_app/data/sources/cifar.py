"""CIFAR-10 and CIFAR-100: pickled batches, in a folder or still in the archive.

CIFAR-10.1 has two further test sets for models trained on CIFAR-10.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.declaration import DatasetReader, DatasetSource, RawDataset
from flfa_app.data.formats.cifar_pickle import image_rows, read_batch
from flfa_app.data.sources.common import (
    find_common_format,
    hub_dataset,
    missing_dataset_text,
)
from flfa_app.data.validation import report_damage, validate_images, validate_labels

_CIFAR10_1_URL = "https://github.com/modestyachts/CIFAR-10.1"
_CIFAR10_1_CURE = f"delete it and download it again from {_CIFAR10_1_URL}"


@dataclass(frozen=True, kw_only=True)
class Cifar(DatasetSource):
    """The batches of one of the two data sets.

    ``folder`` is the folder in the official archive, and ``files`` are its training
    batches, its test batch and the file that has the names of the classes under
    ``names_key``. ``class_names`` are for formats that may have none.
    """

    url: str = "https://www.cs.toronto.edu/~kriz/cifar.html"
    train_images: int | None = 50_000
    test_images: int | None = 10_000
    image_size: int | None = 32
    channels: int | None = 3
    folder: str
    files: tuple[str, ...]
    labels_key: str
    names_key: str
    class_names: tuple[str, ...]

    @property
    def archive(self) -> str:
        """Name of the official archive."""
        return f"cifar-{self.classes}-python.tar.gz"

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find the batches; download the data set if they are missing."""
        root = Path(data_dir).expanduser() if data_dir else None
        if root and (reader := self._find_in(root)):
            return reader
        files = [f"{self.folder}/", self.archive]
        download = f"download {self.archive} from {self.url}"
        text = missing_dataset_text(self.name, files, root, download)
        return hub_dataset(f"uoft-cs/{self.name}", self.class_names, text)

    def _find_in(self, root: Path) -> DatasetReader | None:
        cure = f"delete it and download {self.archive} again from {self.url}"
        absent: dict[Path, list[str]] = {}
        for folder in (root / self.folder, root):
            files = tuple(folder / name for name in self.files)
            absent[folder] = [str(path) for path in files if not path.is_file()]
            if not absent[folder]:
                read = partial(self._read_folder, folder, cure)
                return DatasetReader(str(folder), cure, read, files)
        if (archive := root / self.archive).is_file():
            read = partial(self._read_archive, archive, cure)
            return DatasetReader(str(archive), cure, read, files=(archive,))
        if reader := find_common_format(self.name, root, self.class_names, cure):
            return reader
        for folder, paths in absent.items():
            is_official = folder.name == self.folder and folder.is_dir()
            if is_official or len(paths) < len(self.files):
                raise FileNotFoundError(
                    f"{', '.join(paths)} is missing; unpack {self.archive} again "
                    f"({self.url})"
                )
        return None

    def _read_folder(self, folder: Path, cure: str) -> RawDataset:
        contents = {file: (folder / file).read_bytes() for file in self.files}
        return self._decode(contents, f"{folder}/", cure)

    def _read_archive(self, archive: Path, cure: str) -> RawDataset:
        # Nothing is unpacked to the disk: a member's path could lead anywhere. All of
        # it is decompressed, because the checksum is at the end.
        with report_damage(archive, cure):
            content = gzip.decompress(archive.read_bytes())
            contents = {}
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                for file in self.files:
                    member = tar.extractfile(f"{self.folder}/{file}")
                    if member is None:
                        raise ValueError(f"{self.folder}/{file} in it is not a file")
                    contents[file] = member.read()
        return self._decode(contents, f"{archive}: ", cure)

    def _decode(self, contents: dict[str, bytes], prefix: str, cure: str) -> RawDataset:
        """Decode the files; ``prefix`` comes before their names in error texts."""
        classes, (*batch_files, names_file) = len(self.class_names), self.files
        images, labels = [], []
        for file in batch_files:
            with report_damage(f"{prefix}{file}", cure):
                batch = read_batch(contents[file])
                rows, numbers = image_rows(batch), batch.get(self.labels_key)
                if not isinstance(numbers, list):
                    raise ValueError(f"it has no list {self.labels_key}")
                # `np.array` raises ValueError for lists of several lengths.
                array, key = np.array(numbers), self.labels_key
                labels.append(validate_labels(array, len(rows), classes, key))
            images.append(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        with report_damage(f"{prefix}{names_file}", cure):
            names = read_batch(contents[names_file]).get(self.names_key)
            if not isinstance(names, list) or len(names) != classes:
                raise ValueError(f"it has no list {self.names_key} of {classes} names")
        return RawDataset(
            np.concatenate(images[:-1]),
            np.concatenate(labels[:-1]),
            images[-1],
            labels[-1],
            tuple(str(name) for name in names),
        )


class Cifar10(Cifar):
    """CIFAR-10; CIFAR-10.1 in the same folder is a further test set."""

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find the batches and the further test sets."""
        reader = super().find(data_dir, image_size)
        extra = _find_cifar10_1(Path(data_dir).expanduser()) if data_dir else {}
        if not extra:
            return reader
        extra_files = (path for pair in extra.values() for path in pair)

        def read() -> RawDataset:
            return replace(reader.read(), extra_tests=_read_cifar10_1(extra))

        return replace(reader, read=read, files=(*reader.files, *extra_files))


class Cifar100(Cifar):
    """CIFAR-100 with its fine labels."""

    def verify(self, dataset: RawDataset, location: str) -> None:
        """Raise ValueError also for CIFAR-10, and for the coarse labels.

        Both fit a hundred classes, most of which would then have no image.
        """
        super().verify(dataset, location)
        largest = max(dataset.train_labels.max(), dataset.test_labels.max())
        if largest < 20:  # the number of coarse classes
            raise ValueError(
                f"{location} is not {self.name}: its labels are from 0 to {largest}, "
                "like those of CIFAR-10 or the coarse labels of CIFAR-100; set dataset "
                f"to 'cifar10', or data-dir to the fine labels ({self.url}), or "
                "dataset to 'files' and data-dir to this one"
            )


def _find_cifar10_1(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the image file and the label file of each version in a folder."""
    versions = {}
    for version in ("v4", "v6"):
        images, labels = (
            root / f"cifar10.1_{version}_{content}.npy"
            for content in ("data", "labels")
        )
        if images.is_file() and labels.is_file():
            versions[f"cifar10.1-{version}"] = images, labels
        for present, absent in ((images, labels), (labels, images)):
            if present.is_file() and not absent.is_file():
                raise FileNotFoundError(
                    f"{present} exists, but {absent.name} is missing; download it from "
                    f"{_CIFAR10_1_URL}"
                )
    return versions


def _read_cifar10_1(
    files: dict[str, tuple[Path, Path]],
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Read images and labels of each version."""
    test_sets = {}
    for name, (image_file, label_file) in files.items():
        pixels, numbers = _read_array(image_file), _read_array(label_file)
        with report_damage(image_file, _CIFAR10_1_CURE):
            images = validate_images(pixels, "images")
            if images.shape[1:] != (32, 32, 3):
                raise ValueError(
                    f"the images have the shape {images.shape}; those of CIFAR-10.1 "
                    "have (N, 32, 32, 3)"
                )
        with report_damage(label_file, _CIFAR10_1_CURE):
            labels = validate_labels(numbers, len(images), 10, "labels")
        test_sets[name] = images, labels
    return test_sets


def _read_array(path: Path) -> NDArray[Any]:
    with report_damage(path, _CIFAR10_1_CURE):
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive, not one array")
        return array


SOURCES = (
    Cifar10(
        name="cifar10",
        display_name="CIFAR-10",
        classes=10,
        folder="cifar-10-batches-py",
        files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        labels_key="labels",
        names_key="label_names",
        class_names=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
    ),
    Cifar100(
        name="cifar100",
        display_name="CIFAR-100",
        classes=100,
        folder="cifar-100-python",
        files=("train", "test", "meta"),
        labels_key="fine_labels",
        names_key="fine_label_names",
        class_names=tuple(str(i) for i in range(100)),
    ),
)
