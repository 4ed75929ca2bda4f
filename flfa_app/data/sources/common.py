"""Formats, download and error text that the named data sets share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flfa_app.data.declaration import DatasetReader, RawDataset
from flfa_app.data.formats.huggingface import (
    decode_splits,
    find_saved_dataset,
    is_saved_dataset,
)
from flfa_app.data.formats.npz import find_npz


def find_common_format(
    name: str, root: Path, class_names: tuple[str, ...] | None, cure: str
) -> DatasetReader | None:
    """Find a data set in the formats that every data set may have.

    ``root`` is an ``.npz`` file or a ``load_from_disk`` folder, or has ``<name>.npz``
    or such a folder ``<name>/``.
    """
    for path in (root, root / f"{name}.npz"):
        if path.suffix == ".npz" and path.is_file():
            return find_npz(path, class_names, cure)
    for folder in (root / name, root):
        if is_saved_dataset(folder):
            return find_saved_dataset(folder, class_names, cure)
    return None


def missing_dataset_text(
    name: str, files: Iterable[str], searched: Path | None, download: str
) -> str:
    """Return the error text for a data set that was not found in a folder.

    ``files`` are those of its own format, ``download`` says how to get it.
    """
    formats = [*files, f"{name}.npz", f"load_from_disk folder {name}/"]
    where = f"in {searched}" if searched else "because data-dir is empty"
    return (
        f"{name} is missing: no {', no '.join(formats)} was found {where}; {download} "
        "and set data-dir to its folder"
    )


def hub_dataset(
    repository: str, class_names: tuple[str, ...], missing_text: str
) -> DatasetReader:
    """Return a reader that downloads a data set from the Hub of Hugging Face.

    ``missing_text`` is the first part of the error text if the download fails.
    """

    def download() -> RawDataset:
        from datasets.exceptions import DatasetsError
        from flwr_datasets import FederatedDataset
        from huggingface_hub.errors import HfHubHTTPError

        hub = FederatedDataset(dataset=repository, partitioners={}, shuffle=False)
        try:
            splits = {name: hub.load_split(name) for name in ("train", "test")}
        except (OSError, DatasetsError, HfHubHTTPError) as problem:
            first_line = str(problem).partition("\n")[0]
            raise FileNotFoundError(
                f"{missing_text}. Downloading {repository} from the Hub of Hugging "
                f"Face has failed: {type(problem).__name__}: {first_line}"
            ) from problem
        return decode_splits(splits, class_names)

    location = f"the Hub's {repository}"
    cure = "remove it from the cache of Hugging Face's datasets and try again"
    # A later version on the Hub is not noticed: a decoded data set is kept.
    return DatasetReader(location, cure, download, cache_key=location)
