"""The ServerApp: from the run config to the results of a run."""

from __future__ import annotations

import time
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import Tensor

from flfa_app import plots
from flfa_app.arrays import load_arrays, to_arrays
from flfa_app.config import RunConfig
from flfa_app.data.images import Images, Pixels
from flfa_app.evaluation import evaluate
from flfa_app.metrics import first_cosines
from flfa_app.preflight import Prepared, prepare
from flfa_app.registry import ALGORITHMS
from flfa_app.results import RunDirectory
from flfa_app.roster import Roster
from flfa_app.rounds import run_rounds
from strategies import LayerSelection
from strategies.rules import RULES, Choice

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FLFA: everything that can be wrong is looked at before the first round."""
    started = time.monotonic()
    config = RunConfig.parse(context.run_config)
    torch.set_num_threads(config.threads_per_client)
    ready = prepare(config)
    device, images, model = ready.device, ready.images, ready.model
    run = RunDirectory(config, context.run_id)
    log(INFO, "Results: %s", run.path)

    data = images.description.to_config()
    roster = Roster.of(
        grid,
        min_nodes=config.min_available_nodes,
        timeout=config.round_timeout,
        data=data,
    )
    if len(roster.members) < config.min_train_nodes:
        log(
            WARNING,
            "min-train-nodes is %d, but the federation has %d node(s)",
            config.min_train_nodes,
            len(roster.members),
        )
    parameters = [name for name, _ in model.named_parameters()]
    strategy = _strategy(config, ready, parameters, len(roster.members))
    about = {
        "nodes": len(roster.members),
        "eligible-layers": ready.eligible,
        "candidate-layers": strategy.layers,
        "parameters": sum(p.numel() for p in model.parameters()),
        "fab-hash": grid.run.fab_hash,
    }
    run.write_config(config, about)
    _plot_partition(run, roster, images.class_names)

    initial = to_arrays(model.state_dict())
    model = model.to(device)
    test, test_labels = _tensors(images, images.test, images.test_labels, device)
    extra_tests = {
        name: _tensors(images, *test_set, device)
        for name, test_set in images.extra_tests.items()
    }

    def evaluate_arrays(arrays: ArrayRecord) -> dict[str, Any]:
        load_arrays(model, arrays)
        return evaluate(model, test, test_labels, extra_tests)

    run_rounds(
        config,
        grid,
        strategy,
        roster,
        initial,
        parameters=parameters,
        data=data,
        evaluate=evaluate_arrays,
        record=run.add_round,
    )
    # The last evaluation has left the final weights in the model.
    run.save_model({name: t.cpu() for name, t in model.state_dict().items()})
    title = f"{config.dataset}, {config.model}, {config.algorithm}, flfa={config.flfa}"
    plots.plot_progress(run.rows, run.path / "progress.png", title=title)
    plots.plot_scores(run.rows, run.path / "scores.png", title=title)
    if first_cosines(run.rows):
        plots.plot_cosines(run.rows, run.path / "cosines.png", title=title)
    summary = run.write_summary(
        {
            "rounds-a-no-op-layer-would-have-been-chosen": _no_op_choices(
                config, strategy, run.rows
            ),
            "seconds": round(time.monotonic() - started, 3),
        }
    )
    log(INFO, "Score: %.2f %%", 100 * summary["score"])
    log(INFO, "Results: %s", run.path)


def _tensors(
    images: Images, pixels: Pixels, labels: NDArray[np.int64], device: str
) -> tuple[Tensor, Tensor]:
    """Return a test set as the model takes it."""
    return images.tensor(pixels).to(device), torch.from_numpy(labels).to(device)


def _strategy(
    config: RunConfig, ready: Prepared, parameters: list[str], num_clients: int
) -> LayerSelection:
    """Build the server side of the method, with the layers it may choose."""
    return ALGORITHMS[config.algorithm].build_strategy(
        config.as_keys(),
        {"parameters": parameters, "num_clients": num_clients},
        layers=ready.candidates,
        rule=config.flfa,
        num_layers=config.num_fa_layers,
        fixed_layers=config.fixed_layers,
        observed_layers=ready.eligible,
        selection_seed=config.seed,
        # The app draws the participants itself: the strategy takes all it sees.
        fraction_train=1.0,
        min_train_nodes=1,
        min_available_nodes=1,
    )


def _plot_partition(
    run: RunDirectory, roster: Roster, class_names: tuple[str, ...]
) -> None:
    counts = [member.label_counts for member in roster.members]
    if all(counts):
        title = f"Training images of the {len(counts)} clients"
        path = run.path / "partition.png"
        plots.plot_partition(counts, path, title=title, class_names=class_names)


def _no_op_choices(
    config: RunConfig, strategy: LayerSelection, rows: list[dict[str, Any]]
) -> int | None:
    """Count the rounds whose scores would have chosen a layer without effect.

    Those are the rounds that would have been plain backpropagation with
    ``candidates = "all"``, the paper's rule.
    """
    if config.flfa not in ("lowest", "highest") or config.candidates == "all":
        return None
    choice = Choice(num_layers=config.num_fa_layers)
    chosen = [RULES[config.flfa](row["scores"], choice) for row in rows]
    return sum(not set(names) & set(strategy.layers) for names in chosen)
