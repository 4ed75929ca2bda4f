"""ImageNet-100: those classes of ImageNet that a text file lists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flfa_app.data.declaration import DatasetReader, DatasetSource
from flfa_app.data.formats.image_folder import find_image_folder
from flfa_app.data.validation import report_damage

DEFAULT_SIZE = 64


class ImageNet100(DatasetSource):
    """Image folders, and ``classes.txt`` with one class name per line."""

    def find(self, data_dir: str, image_size: int) -> DatasetReader:
        """Find the folders of the listed classes."""
        download = (
            f"ImageNet is at {self.url} (registration); its classes are the folders "
            "n01440764, ..."
        )
        if not data_dir:
            raise FileNotFoundError(
                f"data-dir is empty; set it to {self.name}'s folder with classes.txt, "
                f"train/ and val/. {download}"
            )
        root = Path(data_dir).expanduser()
        class_list = root / "classes.txt"
        for path in (class_list, root / "train"):
            if not path.exists():
                raise FileNotFoundError(
                    f"{path} is missing; {self.name} needs train/<class>/, "
                    "val/<class>/ (or test/) and classes.txt with one class name per "
                    f"line. {download}"
                )
        with report_damage(class_list, "save it as text in UTF-8, one name per line"):
            # Editors of Windows put a byte order mark at the beginning.
            text = class_list.read_text(encoding="utf-8-sig")
        names = [line.strip() for line in text.splitlines() if line.strip()]
        if not names:
            raise ValueError(f"{class_list} names no class; write one name per line")
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise ValueError(
                f"{class_list} names {', '.join(repeated)} more than once; delete the "
                "repetition"
            )
        return find_image_folder(root, image_size or DEFAULT_SIZE, names)


_URL = "https://www.image-net.org"
SOURCES = (ImageNet100(name="imagenet100", display_name="ImageNet-100", url=_URL),)
