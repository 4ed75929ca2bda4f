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
from flfa_app.client.node_config import place_of
from flfa_app.client.state import ClientState
from flfa_app.config import RunConfig
from flfa_app.data.dataset import DataDescription
from flfa_app.methods import ALGORITHMS
from flfa_app.task import client_images, client_seed, device_of, model_for, use_threads

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which partition this node holds, and how many samples of each class."""
    config = RunConfig.parse(context.run_config)
    place = place_of(context.node_config)
    data = DataDescription.from_config(message.content.config_records["data"])
    labels = client_images(config, place, data).labels
    metrics = MetricRecord(
        {
            "partition-id": place.partition_id,
            "num-partitions": place.num_partitions,
            "num-examples": len(labels),
        }
    )
    if config.report_label_counts:
        counts = np.bincount(labels, minlength=len(data.class_names))
        metrics["label-counts"] = counts.tolist()
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's data; the reply is the new model."""
    config = RunConfig.parse(context.run_config)
    use_threads(config)
    keep_freed_memory()
    place = place_of(context.node_config)
    orders: dict[str, Any] = dict(message.content.config_records["config"])
    # The server's mean and deviation: the same pixels are the same input everywhere.
    data = DataDescription.from_config(orders)
    pixels, labels = client_images(config, place, data)
    inputs = data.tensor(pixels).to(device_of(config))
    targets = torch.from_numpy(labels).to(device_of(config))
    model = _resident_model(config, data)
    load_arrays(model, message.content.array_records["arrays"])

    server_round: int = orders["server-round"]
    settings = TrainSettings(
        learning_rate=config.learning_rate_in(server_round),
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        batch_size=config.batch_size,
        epochs=config.local_epochs,
        clip_norm=config.clip_norm,
        fa_layers=aligned_layers(orders),
        feedback=config.feedback,
        scaling=config.scaling,
        feedback_seed=config.seed,
        augmentation=config.augmentation,
        precision=config.precision,
        diagnostics=config.diagnostics,
        seed=client_seed(config.seed, server_round, place.partition_id),
    )
    method = ALGORITHMS[config.algorithm]
    # Whether it is kept on disk is for the run to say, where for the node.
    state_dir = config.state_dir and (place.state_dir or config.state_dir)
    kept = ClientState(context.state, orders, state_dir, place.partition_id)
    further = [r for k, r in message.content.array_records.items() if k != "arrays"]
    trainer = method.trainer(
        model,
        settings,
        orders,
        state=kept.load(),
        received={k: t for r in further for k, t in to_tensors(r).items()},
    )
    metrics = trainer.fit(inputs, targets)
    reply = RecordDict(
        {
            "arrays": to_arrays(model.state_dict()),
            "metrics": MetricRecord(
                {
                    "num-examples": len(targets),
                    "partition-id": place.partition_id,
                    **metrics,
                }
            ),
        }
    )
    # Last of all, so that a failure leaves the state as it was.
    kept.save(server_round, trainer.state())
    return Message(content=reply, reply_to=message)


@cache
def _resident_model(config: RunConfig, data: DataDescription) -> nn.Module:
    """Return the model this process uses for all its clients, one after another."""
    return model_for(config, data).to(device_of(config))
