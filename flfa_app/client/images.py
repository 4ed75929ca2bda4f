"""The training images of a client."""

from __future__ import annotations

from flfa_app.client.node_config import NodeConfig
from flfa_app.config import RunConfig
from flfa_app.data.dataset import DataDescription
from flfa_app.data.node_data import NodeData, load_node_data
from flfa_app.task import images_of, partitions_of

__all__ = ["client_images"]


def client_images(
    config: RunConfig, node: NodeConfig, description: DataDescription
) -> NodeData:
    """Return the training images (pixels) and labels of one client.

    They are the node's own if it has a ``dataset-path``, otherwise its partition of the
    run's data set. They are not cached: the pixels come from a memory-mapped file.
    """
    if node.dataset_path:
        return load_node_data(node.dataset_path, description)
    images = images_of(config)
    indices = partitions_of(config, node.num_partitions)[node.partition_id]
    return NodeData(images.train[indices], images.train_labels[indices])
