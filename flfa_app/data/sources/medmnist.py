"""MedMNIST: an archive for each set, from the package's folder or from Zenodo."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from flfa_app.data.formats.npz import find_npz
from flfa_app.data.sources.named import find_anyhow, missing
from flfa_app.data.validation import Decoded, Source, checked

__all__ = ["MEDMNIST", "ZENODO", "find_medmnist"]

ZENODO = "https://zenodo.org/records/10519652/files/{}.npz?download=1"
# The two-dimensional sets with one label an image.
MEDMNIST = (
    "pathmnist",
    "dermamnist",
    "octmnist",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
    "bloodmnist",
    "tissuemnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
)
_SIZE = 28


def find_medmnist(name: str, data_dir: str, image_size: int) -> Source:
    """Find the official file of 28x28 pixels; download it if there is none."""
    root = Path(data_dir or "~/.medmnist").expanduser()
    url = ZENODO.format(name)
    cure = f"delete it and download it again from {url}"
    source = find_anyhow(name, root, None, cure)
    if source is None:
        path = root / f"{name}.npz"
        _download(name, path, missing(name, (), [root], f"download it from {url}"))
        source = find_npz(path, None, cure)
    # Some sets are alike in all that `_read` could tell them apart by.
    if (other := Path(source.place).stem) in MEDMNIST and other != name:
        raise ValueError(
            f"dataset is {name!r}, but data-dir leads to {source.place}; set dataset "
            f"to {other!r}, or data-dir to the folder of {name}.npz ({url})"
        )
    return replace(source, read=partial(_read, name, source))


def _read(name: str, source: Source) -> Decoded:
    """Read a set and name its classes; raise if it is another one."""
    # Here, not above: with the cache filled nobody waits for the package's imports.
    import medmnist

    info = medmnist.INFO[name]
    names = info["label"]
    found = checked(source.read(), source)
    has = found.train.shape[1], found.train.shape[3], len(found.class_names)
    expected = _SIZE, info["n_channels"], len(names)
    if has != expected:
        raise ValueError(
            f"{source.place} is not {name}: it has {_text(*has)}, {name} has "
            f"{_text(*expected)}; set data-dir to the folder of the official "
            f"{name}.npz ({ZENODO.format(name)}), or dataset to 'files' and data-dir "
            "to this one"
        )
    return replace(found, class_names=tuple(names[str(i)] for i in range(len(names))))


def _text(size: int, channels: int, classes: int) -> str:
    return (
        f"{size}x{size} pixels, {channels} channel(s) and {classes} classes (labels "
        f"from 0 to {classes - 1})"
    )


def _download(name: str, path: Path, otherwise: str) -> None:
    import medmnist

    cls = getattr(medmnist, medmnist.INFO[name]["python_class"])
    folders = (path.parent, *path.parent.parents)
    new = [folder for folder in folders if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under another name until it is complete.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            cls(split="train", download=True, root=folder)
            Path(folder, path.name).replace(path)
    except (OSError, RuntimeError) as problem:
        cause = problem.__context__ or problem
        _remove_empty(new)
        raise FileNotFoundError(
            f"{otherwise}. The medmnist package has failed to download it: "
            f"{type(cause).__name__}: {cause}"
        ) from problem


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, the inner ones first: `data-dir` may be a slip of the pen."""
    with suppress(OSError):  # one was never made, or another process uses it
        for folder in folders:
            folder.rmdir()
