"""The ClientApp: from a message to a trained model and back."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from clients import TrainSettings, aligned_layers, keep_freed_memory
from flfa_app.arrays import load_arrays, to_arrays, to_tensors
from flfa_app.client.images import client_images
from flfa_app.client.node_config import NodeConfig
from flfa_app.client.state import ClientState
from flfa_app.config import RunConfig
from flfa_app.data.dataset import DataDescription
from flfa_app.message_keys import (
    LABEL_COUNTS,
    NUM_EXAMPLES,
    NUM_PARTITIONS,
    PARTITION_ID,
    SERVER_ROUND,
)
from flfa_app.methods import ALGORITHMS
from flfa_app.task import client_seed, device_of, model_for, use_threads

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Reply which partition this node holds, and its number of samples per class."""
    config = RunConfig.parse(context.run_config)
    node = NodeConfig.parse(context.node_config)
    data = DataDescription.from_config(message.content.config_records["data"])
    labels = client_images(config, node, data).labels
    metrics = MetricRecord(
        {
            PARTITION_ID: node.partition_id,
            NUM_PARTITIONS: node.num_partitions,
            NUM_EXAMPLES: len(labels),
        }
    )
    if config.report_label_counts:
        counts = np.bincount(labels, minlength=len(data.class_names))
        metrics[LABEL_COUNTS] = counts.tolist()
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's data; reply with the new model."""
    config = RunConfig.parse(context.run_config)
    use_threads(config)
    keep_freed_memory()
    node = NodeConfig.parse(context.node_config)
    message_config: dict[str, Any] = dict(message.content.config_records["config"])
    # Pixels are normalised with the server's mean and deviation on every node.
    data = DataDescription.from_config(message_config)
    pixels, labels = client_images(config, node, data)
    inputs = data.tensor(pixels).to(device_of(config))
    targets = torch.from_numpy(labels).to(device_of(config))
    model = _process_model(config, data)
    arrays = dict(message.content.array_records)
    load_arrays(model, arrays.pop("arrays"))
    # state-dir in the run config switches states on disk on; a node may move them.
    state_dir = config.state_dir and (node.state_dir or config.state_dir)
    state = ClientState(context.state, message_config, state_dir, node.partition_id)
    trainer = ALGORITHMS[config.algorithm].trainer(
        model,
        _train_settings(config, message_config, node.partition_id),
        message_config,
        state=state.load(),
        received={k: t for r in arrays.values() for k, t in to_tensors(r).items()},
    )
    metrics: dict[str, Any] = {
        NUM_EXAMPLES: len(targets),
        PARTITION_ID: node.partition_id,
        **trainer.fit(inputs, targets),
    }
    reply = RecordDict(
        {"arrays": to_arrays(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    # At the very end: a client that fails keeps its previous state.
    state.save(message_config[SERVER_ROUND], trainer.state())
    return Message(content=reply, reply_to=message)


def _train_settings(
    config: RunConfig, message_config: dict[str, Any], partition_id: int
) -> TrainSettings:
    server_round: int = message_config[SERVER_ROUND]
    return TrainSettings(
        learning_rate=config.learning_rate_in(server_round),
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        batch_size=config.batch_size,
        epochs=config.local_epochs,
        clip_norm=config.clip_norm,
        fa_layers=aligned_layers(message_config),
        feedback=config.feedback,
        scaling=config.scaling,
        feedback_seed=config.seed,
        augmentation=config.augmentation,
        precision=config.precision,
        diagnostics=config.diagnostics,
        seed=client_seed(config.seed, server_round, partition_id),
    )


@cache
def _process_model(config: RunConfig, data: DataDescription) -> nn.Module:
    """Return the one model that this process uses for all its clients in turn."""
    return model_for(config, data).to(device_of(config))
