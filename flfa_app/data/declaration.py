"""Declaration of a data set, and what finding and reading it return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

__all__ = ["DatasetReader", "DatasetSource", "RawDataset"]


@dataclass(frozen=True)
class RawDataset:
    """Arrays of a data set as they were read.

    The fields are those of :class:`~flfa_app.data.dataset.ImageDataset`.
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

    Parameters
    ----------
    location : str
        File, folder or address, for error messages.
    cure : str
        What the user should do if the data is damaged, for error messages.
    read : Callable[[], RawDataset]
        Reads everything.
    files : tuple[Path, ...]
        Files that ``read`` reads. Their paths, sizes and modification times are part
        of the cache key.
    cache_key : str
        Further text of the cache key: the order of the classes, or the address of data
        that is not in local files. Data with neither files nor this text is not cached.
    """

    location: str
    cure: str
    read: Callable[[], RawDataset]
    files: tuple[Path, ...] = ()
    cache_key: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetSource(ABC):
    """Declaration of a data set. A subclass says where the files are.

    Parameters
    ----------
    name : str
        Value of the run config's key ``dataset``.
    display_name : str
        Spelling in tables and reports.
    url : str
        Where a person can get the data set.
    train_images, test_images : int, optional
        Number of images of the official files, for time estimates. Files with another
        number are accepted.
    image_size : int, optional
        Width and height of an image in pixels.
    channels : int, optional
        Channels of an image.
    classes : int, optional
        Number of classes.
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
        """Find the files; what can be downloaded is downloaded if they are missing.

        Parameters
        ----------
        data_dir : str
            Value of the run config's key ``data-dir``; ``""``: the usual folder.
        image_size : int
            Width and height to which photographs are resized; 0: not at all.

        Raises
        ------
        FileNotFoundError
            If the data set is missing and cannot be downloaded.
        """

    def verify(self, dataset: RawDataset, location: str) -> None:
        """Raise ValueError if validated arrays do not have the declared form."""
        declared = (self.image_size, self.channels, self.classes)
        found = (
            dataset.train.shape[1],
            dataset.train.shape[3],
            len(dataset.class_names),
        )
        if all(d in (None, f) for d, f in zip(declared, found, strict=True)):
            return
        raise ValueError(
            f"{location} is not {self.name}: it has {_form(*found)}, {self.name} has "
            f"{_form(*declared)}; set data-dir to the folder of {self.name}"
            f"{f' ({self.url})' if self.url else ''}, or set dataset to 'files' and "
            "data-dir to this one"
        )


def _form(size: int | None, channels: int | None, classes: int | None) -> str:
    parts = []
    if size is not None:
        parts.append(f"{size}x{size} pixels")
    if channels is not None:
        parts.append(f"{channels} channel(s)")
    if classes is not None:
        parts.append(f"{classes} classes (labels from 0 to {classes - 1})")
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
