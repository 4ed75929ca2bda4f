"""The ClientApp: a new model and a new DataLoader for each message."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.given import new_model, partition, seed_of, settings
from quickstart.task import load_data
from quickstart.task import train as train_fn

app = ClientApp()


@app.query()
def query(msg: Message, context: Context) -> Message:
    """Say which partition this node holds."""
    metrics = MetricRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    # What Ray asks of a worker with one CPU, whether or not the variable is set here.
    torch.set_num_threads(1)
    folder = str(context.run_config["work-dir"])
    client = int(context.node_config["partition-id"])
    config = msg.content.config_records["config"]
    given = settings(folder)

    model = new_model(folder)
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    seed = seed_of(folder, int(str(config["server-round"])), client)
    trainloader = load_data(folder, client, seed)
    torch.manual_seed(seed)  # dropout leaves out the same in every arm
    train_loss = train_fn(
        model,
        trainloader,
        given["local-epochs"],
        lr=given["learning-rate"],
        momentum=given["momentum"],
        weight_decay=given["weight-decay"],
    )

    metrics = MetricRecord(
        {"train-loss": train_loss, "num-examples": len(partition(folder, client))}
    )
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    )
    return Message(content=content, reply_to=msg)
