"""ImageNet-100: a hundred classes of ImageNet, named in a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flfa_app.data.formats.folders import find_folders
from flfa_app.data.validation import Source, reading

__all__ = ["find_imagenet100"]

DEFAULT_SIZE = 64
_GET = (
    "ImageNet is at https://www.image-net.org (registration); its classes are the "
    "folders n01440764, ..."
)


def find_imagenet100(name: str, data_dir: str, image_size: int) -> Source:
    """Find the image folders; ``classes.txt`` names those to use, one in a line."""
    if not data_dir:
        raise FileNotFoundError(
            f"data-dir is empty; set it to {name}'s folder with classes.txt, train/ "
            f"and val/. {_GET}"
        )
    root = Path(data_dir).expanduser()
    for path in (root / "classes.txt", root / "train"):
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing; {name} needs train/<class>/, val/<class>/ (or "
                f"test/) and classes.txt with one name of a class in a line. {_GET}"
            )
    names = _class_names(root / "classes.txt")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{root / 'classes.txt'} names {', '.join(twice)} twice")
    if not names:
        raise ValueError(f"{root / 'classes.txt'} names no class")
    return find_folders(root, image_size or DEFAULT_SIZE, names)


def _class_names(path: Path) -> list[str]:
    with reading(path, "save it as text in UTF-8, one name of a class in a line"):
        # Windows' editors begin such a file with a mark that is no part of a name.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]
