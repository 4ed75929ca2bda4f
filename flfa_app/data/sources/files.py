"""Data of the user's own, in one of three formats."""

from __future__ import annotations

from pathlib import Path

from flfa_app.data.declaration import DatasetReader, DatasetSource
from flfa_app.data.formats.image_folder import find_image_folder
from flfa_app.data.sources.common import find_common_format

_FORMATS = (
    "an .npz file, a folder written by datasets' save_to_disk, or a folder with "
    "train/<class>/ and test/<class>/"
)


class OwnFiles(DatasetSource):
    """The file or folder that ``data-dir`` names."""

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Recognise the format; the classes are those of the data."""
        if not data_dir:
            raise FileNotFoundError(
                f"dataset is {self.name!r}, but data-dir is empty; set it to {_FORMATS}"
            )
        path = Path(data_dir).expanduser()
        if reader := find_common_format("", path, None, "write it again"):
            return reader
        if (path / "train").is_dir():
            return find_image_folder(path, image_size)
        problem = "is not" if path.exists() else "is missing; data-dir must be"
        raise FileNotFoundError(f"data-dir {path} {problem} {_FORMATS}")


SOURCES = (OwnFiles(name="files", display_name="files"),)
