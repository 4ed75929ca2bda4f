"""The server: our own strategy with FLFA in front of it, and Flower's own loop."""

import json
from pathlib import Path

import flfa.clients
import flfa.strategies
import torch
from flfa.clients import effective_layers  # FLFA
from flfa.strategies import LayerSelection  # FLFA
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import strategies
from digits_transformer.task import DigitsTransformer, load_test
from strategies import FedAvgEMA

app = ServerApp()


class FLFAFedAvgEMA(LayerSelection, FedAvgEMA):  # FLFA
    """Our strategy aggregates, FLFA chooses the layers."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    run = context.run_config
    rounds = run["num-server-rounds"]
    torch.manual_seed(run["seed"])
    model = DigitsTransformer()
    images, labels = load_test()
    # The layers worth choosing from: not the first one, nor those inside of
    # nn.MultiheadAttention.
    layers = effective_layers(model, images[:1])  # FLFA
    strategy = FLFAFedAvgEMA(
        layers=layers,  # FLFA
        decay=run["decay"],
        fraction_evaluate=0.0,
    )
    # What each round was trained with.
    selected: list[list[str]] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round < rounds:  # `selected` is for the round to come
            selected.append(strategy.selected)
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        with torch.no_grad():
            right = model(images).argmax(dim=1) == labels
        return MetricRecord({"accuracy": right.float().mean().item()})

    result = strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=evaluate
    )
    if run["result-file"]:
        report = {
            "accuracy": [
                metrics["accuracy"]
                for _, metrics in sorted(result.evaluate_metrics_serverapp.items())
            ],
            "candidates": layers,
            # Both of these are one entry a round.
            "selected": selected,
            "aligned-layers": [
                metrics["aligned-layers"]
                for _, metrics in sorted(result.train_metrics_clientapp.items())
            ],
            # Two packages are called `strategies`: this app's and FLFA's.
            "modules": {
                module.__name__: module.__file__
                for module in (strategies, flfa.strategies, flfa.clients)
            },
        }
        Path(run["result-file"]).write_text(json.dumps(report, indent=2))
