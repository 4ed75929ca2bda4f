"""The client: a PyTorch loop like any other, inside one ``with`` of FLFA."""

import torch
from flfa.clients import aligned_layers, feedback_alignment  # FLFA
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from digits_transformer.task import DigitsTransformer, load_shard

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    run, node = context.run_config, context.node_config
    orders = message.content["config"]
    model = DigitsTransformer()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = node["partition-id"]
    images, labels = load_shard(partition, node["num-partitions"], run["seed"])

    # One process plays many clients: the seed must not depend on who came before.
    torch.manual_seed(hash((run["seed"], orders["server-round"], partition)))
    optimizer = torch.optim.Adam(model.parameters(), lr=run["learning-rate"])
    model.train()
    # The server chose the layers; the model must hold its weights by now.
    layers = aligned_layers(orders)  # FLFA
    with feedback_alignment(model, layers):  # FLFA
        for _ in range(run["local-epochs"]):
            for batch in torch.randperm(len(labels)).split(run["batch-size"]):
                optimizer.zero_grad()
                loss = cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()

    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord(
            {"num-examples": len(labels), "aligned-layers": len(layers)}
        ),
    }
    return Message(RecordDict(reply), reply_to=message)
