"""The images, and who holds which of them.

The libraries behind a data set are imported when it is decoded: all of them together
take longer than the first round, in every process that serves clients.
"""

from flfa_app.data.dataset import Description, Images
from flfa_app.data.kept import kept_partition
from flfa_app.data.loading import load_images
from flfa_app.data.node_data import OwnImages, load_own_images
from flfa_app.data.partition import PARTITIONERS, partition_indices
from flfa_app.data.sources import DATASETS

__all__ = [
    "DATASETS",
    "PARTITIONERS",
    "Description",
    "Images",
    "OwnImages",
    "kept_partition",
    "load_images",
    "load_own_images",
    "partition_indices",
]
