"""The ServerApp: from the run config to the results of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import Tensor

from flfa_app.arrays import load_arrays, to_arrays, to_tensors
from flfa_app.checkpoint import Checkpoint, Checkpoints
from flfa_app.config import ConfigError, RunConfig
from flfa_app.data.images import Images, Pixels
from flfa_app.evaluation import evaluate
from flfa_app.federation import Federation
from flfa_app.metrics import first_cosines
from flfa_app.participation import Participation
from flfa_app.preflight import Prepared, prepare
from flfa_app.recorder import Recorder
from flfa_app.registry import ALGORITHMS
from flfa_app.results import RunDirectory
from flfa_app.resume import check_same_run, run_to_resume
from flfa_app.roster import Roster
from flfa_app.rounds import run_rounds
from strategies import LayerSelection, ServerState
from strategies.rules import RULES, Choice

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FLFA: everything that can be wrong is looked at before the first round."""
    started = time.monotonic()
    config = RunConfig.parse(context.run_config)
    torch.set_num_threads(config.threads_per_client)
    ready = prepare(config)
    before = run_to_resume(config)
    run = (
        RunDirectory.create(config, context.run_id)
        if before is None
        else RunDirectory(before, config.model)
    )
    log(INFO, "Results: %s", run.path)
    with run.in_use():
        checkpoints = Checkpoints.of(run.path, config.keep_checkpoints)
        checkpoint = None if before is None else checkpoints.newest()
        if checkpoint is not None:
            check_same_run(run.path, checkpoint.about["run-config"], config.as_keys())
        data = ready.images.description.to_config()
        roster = _roster(grid, config, data)
        parameters = [name for name, _ in ready.model.named_parameters()]
        strategy = _strategy(config, ready, parameters, len(roster.members))
        about = {
            "nodes": len(roster.members),
            "eligible-layers": ready.eligible,
            "candidate-layers": strategy.layers,
            "parameters": sum(p.numel() for p in ready.model.parameters()),
            "fab-hash": grid.run.fab_hash,
        }
        arrays, first_round = to_arrays(ready.model.state_dict()), 1
        if checkpoint is not None:
            nodes = {"nodes": len(roster.members)}
            check_same_run(run.path, checkpoint.about, nodes, "number of nodes")
            arrays = _take_up(checkpoint, strategy, arrays)
            first_round = checkpoint.server_round + 1
            run.go_back_to(checkpoint.rows)
            checkpoints.forget_after(checkpoint.server_round)
            log(INFO, "Going on after round %d", checkpoint.server_round)
        run.write_config(config, context.run_id, about)
        if config.pictures:
            _plot_partition(run, roster, ready.images.class_names)
        participation = _participation(config, run)
        recorder = Recorder(config, run, checkpoints, strategy, about, participation)
        federation = Federation(
            config, grid, strategy, roster, parameters, data, participation
        )
        if not recorder.stopped:
            try:
                arrays = run_rounds(
                    federation,
                    arrays,
                    first_round=first_round,
                    evaluate=_evaluation(ready),
                    done=recorder.done,
                )
            except (RuntimeError, OSError) as problem:
                raise RuntimeError(f"{problem}\n{recorder.how_to_go_on()}") from problem
        run.save_model(to_tensors(arrays))
        if recorder.best_arrays is not None:
            best = to_tensors(recorder.best_arrays)
            run.save_model(best, "best_model.safetensors")
        if config.pictures:
            _plot_rounds(run, config)
        summary = run.write_summary(
            {
                "rounds-a-no-op-layer-would-have-been-chosen": _no_op_choices(
                    config, strategy, run.rows
                ),
                "stopped-early": recorder.stopped,
                "seconds": round(time.monotonic() - started, 3),
            }
        )
    log(INFO, "Score: %.2f %%", 100 * summary["score"])
    log(INFO, "Results: %s", run.path)


def _roster(grid: Grid, config: RunConfig, data: dict[str, Any]) -> Roster:
    """Wait for the nodes; see whether there are enough."""
    roster = Roster.of(
        grid,
        min_nodes=config.min_available_nodes,
        timeout=config.round_timeout,
        data=data,
    )
    nodes = len(roster.members)
    if config.min_replies > nodes:
        raise ConfigError(
            f"min-replies is {config.min_replies}, but the federation has {nodes} "
            "node(s); lower it, or wait for more with min-available-nodes"
        )
    if nodes < config.min_train_nodes:
        log(
            WARNING,
            "min-train-nodes is %d, but the federation has %d node(s)",
            config.min_train_nodes,
            nodes,
        )
    return roster


def _take_up(
    checkpoint: Checkpoint, strategy: LayerSelection, like: ArrayRecord
) -> ArrayRecord:
    """Give the strategy its state back; return the global arrays."""
    strategy.load_server_state(
        ServerState(checkpoint.strategy_arrays, checkpoint.strategy_values)
    )
    return ArrayRecord({name: Array(checkpoint.model[name]) for name in like})


def _participation(config: RunConfig, run: RunDirectory) -> Participation | None:
    """Return what clients with a state need to be told; None if they have none."""
    if not ALGORITHMS[config.algorithm].keeps_client_state:
        return None
    if config.state_dir:
        if run.rows:
            log(INFO, "Clients take up the state they have in %s", config.state_dir)
        return Participation(run.rows, run.short_name)
    if run.rows:
        log(
            WARNING,
            "clients go on without the state that %s had given them: state-dir is not "
            "set",
            config.algorithm,
        )
    return Participation()


def _evaluation(ready: Prepared) -> Callable[[ArrayRecord], dict[str, Any]]:
    """Return what measures a model on the test images."""
    model, images, device = ready.model.to(ready.device), ready.images, ready.device
    test, test_labels = _tensors(images, images.test, images.test_labels, device)
    extra_tests = {
        name: _tensors(images, *test_set, device)
        for name, test_set in images.extra_tests.items()
    }

    def evaluate_arrays(arrays: ArrayRecord) -> dict[str, Any]:
        load_arrays(model, arrays)
        return evaluate(model, test, test_labels, extra_tests)

    return evaluate_arrays


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


def _plot_rounds(run: RunDirectory, config: RunConfig) -> None:
    from flfa_app import plots

    title = f"{config.dataset}, {config.model}, {config.algorithm}, flfa={config.flfa}"
    plots.plot_progress(run.rows, run.path / "progress.png", title=title)
    plots.plot_scores(run.rows, run.path / "scores.png", title=title)
    if first_cosines(run.rows):
        plots.plot_cosines(run.rows, run.path / "cosines.png", title=title)


def _plot_partition(
    run: RunDirectory, roster: Roster, class_names: tuple[str, ...]
) -> None:
    counts = [member.label_counts for member in roster.members]
    if all(counts):
        # Imported where it is needed: drawing is slow to import, and may be off.
        from flfa_app import plots

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
