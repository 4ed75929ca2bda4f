"""What holds for every data set with a name, whatever its own format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from flfa_app.data.formats.npz import find_npz
from flfa_app.data.formats.saved import decode_splits, find_saved, is_saved
from flfa_app.data.validation import Decoded, Source, checked

__all__ = ["expecting", "find_anyhow", "from_hub", "missing"]


def find_anyhow(
    name: str, root: Path, class_names: tuple[str, ...] | None, cure: str
) -> Source | None:
    """Find a data set in the formats that any of them may have.

    These are ``<name>.npz`` and a ``load_from_disk`` folder: ``<name>/`` or the given
    one. The given path may also be the archive itself.
    """
    for path in (root, root / f"{name}.npz"):
        if path.suffix == ".npz" and path.is_file():
            return find_npz(path, class_names, cure)
    for folder in (root / name, root):
        if is_saved(folder):
            return find_saved(folder, class_names, cure)
    return None


def expecting(source: Source, name: str, size: int, channels: int) -> Source:
    """Return a source that refuses images of another kind when it is read.

    Parameters
    ----------
    source : Source
        Of the data set, or of a file that has only its name.
    name : str
        Of the data set.
    size, channels : int
        Of its images.
    """
    return replace(source, read=partial(_read, source, name, (size, channels)))


def _read(source: Source, name: str, expected: tuple[int, int]) -> Decoded:
    found = checked(source.read(), source)
    has = found.train.shape[1], found.train.shape[3]
    if has != expected:
        raise ValueError(
            f"{source.place} is not {name}: its images have {_kind(*has)}, those of "
            f"{name} {_kind(*expected)}; set data-dir to the folder of {name}, or "
            "dataset to 'files' and data-dir to this one"
        )
    return found


def _kind(size: int, channels: int) -> str:
    return f"{size}x{size} pixels and {channels} channel(s)"


def missing(name: str, files: Iterable[str], looked: Iterable[Path], get: str) -> str:
    """Return the text for a data set that is nowhere.

    Parameters
    ----------
    name : str
        Of the data set.
    files : Iterable[str]
        What it could have been, besides the formats of any data set.
    looked : Iterable[Path]
        Where.
    get : str
        How to get it.
    """
    formats = [*files, f"{name}.npz", f"load_from_disk folder {name}/"]
    places = ", ".join(map(str, looked))
    where = f"in {places}" if places else "because data-dir is empty"
    return (
        f"{name} is missing: no {', no '.join(formats)} was found {where}; {get} and "
        "set data-dir to its folder"
    )


def from_hub(
    name: str, repository: str, class_names: tuple[str, ...], otherwise: str
) -> Source:
    """Find a data set on the Hub of Hugging Face.

    Parameters
    ----------
    name : str
        Of the data set.
    repository : str
        Its name on the Hub.
    class_names : tuple[str, ...]
        In the order of the labels.
    otherwise : str
        What to say if it cannot be downloaded.
    """
    read = partial(_download, repository, class_names, otherwise)
    place = f"the Hub's {repository}"
    cure = "remove it from the cache of Hugging Face's datasets and try again"
    # Whatever the Hub has by then: what was decoded once is not asked for again.
    return Source(place, cure, read, identity=place)


def _download(repository: str, class_names: tuple[str, ...], otherwise: str) -> Decoded:
    from datasets.exceptions import DatasetsError
    from flwr_datasets import FederatedDataset
    from huggingface_hub.errors import HfHubHTTPError

    hub = FederatedDataset(dataset=repository, partitioners={}, shuffle=False)
    try:
        splits = {name: hub.load_split(name) for name in ("train", "test")}
    except (OSError, DatasetsError, HfHubHTTPError) as problem:
        first = str(problem).partition("\n")[0]
        raise FileNotFoundError(
            f"{otherwise}. Downloading {repository} from the Hub of Hugging Face has "
            f"failed: {type(problem).__name__}: {first}"
        ) from problem
    return decode_splits(splits, class_names)
