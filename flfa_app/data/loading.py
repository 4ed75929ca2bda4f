"""From the name of a data set to its images."""

from __future__ import annotations

from functools import cache, partial

from flfa_app.data.cache import cached_images
from flfa_app.data.dataset import Images, channel_statistics
from flfa_app.data.sources import DATASETS
from flfa_app.data.validation import Source, checked

__all__ = ["load_images"]


@cache
def load_images(name: str, data_dir: str = "", image_size: int = 0) -> Images:
    """Load a data set; once in a process, decoded once on a machine.

    Parameters
    ----------
    name : str
        One of ``DATASETS``.
    data_dir : str
        Where its files are; ``""``: where they usually are.
    image_size : int
        Width and height to which photographs in folders are brought; all other images
        must have it already. 0: as they are.

    Raises
    ------
    FileNotFoundError
        If the data set is not there and cannot be downloaded.
    ValueError
        If it is damaged, or of another size.
    OSError
        If a file cannot be read, or the cache not written.
    """
    source = DATASETS[name](name, data_dir, image_size)
    decode = partial(_decode, source, image_size)
    if not source.files and not source.identity:
        return decode()
    return cached_images(name, image_size, source.files, source.identity, decode)


def _decode(source: Source, image_size: int) -> Images:
    found = checked(source.read(), source)
    size = found.train.shape[1]
    if image_size not in (0, size):
        raise ValueError(
            f"image-size is {image_size}, but the images in {source.place} are "
            f"{size}x{size}, and only image folders are resized; set image-size to 0"
        )
    mean, deviation = channel_statistics(found.train)
    return Images(**vars(found), mean=mean, deviation=deviation)
