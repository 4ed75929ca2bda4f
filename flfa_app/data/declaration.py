"""Declaration of a data set, and what finding and reading it return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class RawDataset:
    """Arrays of a data set as they were read, and the class names by label.

    ``extra_tests`` are further test sets, and ``columns`` further properties of each
    training image, e.g. the writer, by name.
    """

    train: NDArray[Any]
    train_labels: NDArray[Any]
    test: NDArray[Any]
    test_labels: NDArray[Any]
    class_names: tuple[str, ...]
    extra_tests: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] = field(
        default_factory=dict
    )
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetReader:
    """Location of a data set and the function that reads it.

    ``location`` (file, folder or address) and ``cure`` (what the user should do) are
    for error messages about damaged data. The paths, sizes and modification times of
    ``files``, which ``read`` reads, are part of the cache key. ``cache_key`` is
    further text of that key: the order of the classes, or the address of data that is
    not in local files. Data with neither files nor this text is not cached.
    """

    location: str
    cure: str
    read: Callable[[], RawDataset]
    files: tuple[Path, ...] = ()
    cache_key: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetSource(ABC):
    """Declaration of a data set. A subclass says where the files are.

    ``name`` is the value of the run config's key ``dataset``, ``display_name`` the
    spelling in tables and reports, ``url`` where a person can get the data set. The
    numbers of images of the official files are for time estimates; files with another
    number are accepted. Width and height (``image_size``), channels and classes of the
    files must be the declared ones; None accepts any.
    """

    name: str
    display_name: str
    url: str = ""
    train_images: int | None = None
    test_images: int | None = None
    image_size: int | None = None
    channels: int | None = None
    classes: int | None = None

    @abstractmethod
    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find the files in ``data_dir`` (``""``: the usual folder).

        Photographs are resized to ``image_size`` pixels a side (0: not at all). What
        can be downloaded is downloaded if it is missing; if it cannot be downloaded,
        FileNotFoundError is raised.
        """

    def verify(self, dataset: RawDataset, location: str) -> None:
        """Raise ValueError if validated arrays do not have the declared form."""
        _, size, _, channels = dataset.train.shape
        classes = len(dataset.class_names)
        form = _form(size, channels, classes)
        declared = _form(
            self.image_size or size, self.channels or channels, self.classes or classes
        )
        if form != declared:
            raise ValueError(
                f"{location} is not {self.name}: it has {form}, {self.name} has "
                f"{declared}; set data-dir to the folder of {self.name}"
                f"{f' ({self.url})' if self.url else ''}, or set dataset to 'files' "
                "and data-dir to this one"
            )


def _form(size: int, channels: int, classes: int) -> str:
    return (
        f"{size}x{size} pixels, {channels} channel(s) and {classes} classes (labels "
        f"from 0 to {classes - 1})"
    )
