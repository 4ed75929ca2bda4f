"""Loading of a data set by its name."""

from __future__ import annotations

from functools import cache

from flfa_app.data.cache import cached_dataset
from flfa_app.data.dataset import ImageDataset, channel_statistics
from flfa_app.data.sources import DATASETS
from flfa_app.data.validation import validate_dataset


@cache
def load_dataset(name: str, data_dir: str = "", image_size: int = 0) -> ImageDataset:
    """Load a data set of ``DATASETS``: once per process, decoded once per machine.

    Photographs in folders are resized to ``image_size`` pixels a side; all other images
    must already have this size. 0: no resizing.

    Raises
    ------
    ValueError
        If it is damaged, of another size, or another data set.
    OSError
        If it is missing and cannot be downloaded, a file cannot be read, or the cache
        cannot be written.
    """
    source = DATASETS[name]
    reader = source.find(data_dir, image_size)

    def decode() -> ImageDataset:
        dataset = validate_dataset(reader.read(), reader)
        source.verify(dataset, reader.location)
        size = dataset.train.shape[1]
        if image_size not in (0, size):
            raise ValueError(
                f"image-size is {image_size}, but the images in {reader.location} are "
                f"{size}x{size}, and only image folders are resized; set image-size to "
                "0"
            )
        mean, deviation = channel_statistics(dataset.train)
        return ImageDataset(**vars(dataset), mean=mean, deviation=deviation)

    if not reader.files and not reader.cache_key:
        return decode()
    return cached_dataset(name, image_size, reader.files, reader.cache_key, decode)
