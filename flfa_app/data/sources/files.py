"""The user's own data, in whatever format it is."""

from __future__ import annotations

from pathlib import Path

from flfa_app.data.formats.folders import find_folders
from flfa_app.data.formats.npz import find_npz
from flfa_app.data.formats.saved import find_saved, is_saved
from flfa_app.data.validation import Source

__all__ = ["find_files"]

_FORMATS = (
    "an .npz file, a folder written by datasets' save_to_disk, or a folder with "
    "train/<class>/ and test/<class>/"
)


def find_files(name: str, data_dir: str, image_size: int) -> Source:
    """Find what ``data-dir`` points to; the classes are those of the data."""
    if not data_dir:
        raise FileNotFoundError(
            f"dataset is {name!r}, but data-dir is empty; set it to {_FORMATS}"
        )
    path = Path(data_dir).expanduser()
    cure = "write it again"
    if path.suffix == ".npz" and path.is_file():
        return find_npz(path, None, cure)
    if is_saved(path):
        return find_saved(path, None, cure)
    if (path / "train").is_dir():
        return find_folders(path, image_size)
    what = "is not" if path.exists() else "is missing; data-dir must be"
    raise FileNotFoundError(f"data-dir {path} {what} {_FORMATS}")
