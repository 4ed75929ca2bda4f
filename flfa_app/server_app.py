"""The ServerApp: from the run config to the results of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import Tensor

from flfa_app.arrays import load_arrays, to_arrays, to_tensors
from flfa_app.config import RunConfig
from flfa_app.data.dataset import ImageDataset, Pixels
from flfa_app.methods import ALGORITHMS
from flfa_app.preflight import Prepared, prepare
from flfa_app.results.checkpoint import Checkpoint, Checkpoints
from flfa_app.results.pictures import plot_partition, plot_rounds
from flfa_app.results.records import Evaluation, RoundRecord
from flfa_app.results.resume import about_data, check_goes_on, run_to_resume
from flfa_app.results.run_directory import RunDirectory
from flfa_app.server.client_history import Participation
from flfa_app.server.evaluation import evaluate
from flfa_app.server.fused import FusedModel
from flfa_app.server.gathering import about_nodes, gather
from flfa_app.server.loop import run_rounds
from flfa_app.server.nodes import Roster
from flfa_app.server.recorder import Recorder
from flfa_app.server.round import Federation
from flfa_app.server.simulation_engine import hand_out_in_order
from flfa_app.task import use_threads
from strategies import LayerSelection, ServerState
from strategies.rules import RULES, RuleContext

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FLFA: everything that can be wrong is looked at before the first round."""
    started = time.monotonic()
    hand_out_in_order(grid)
    config = RunConfig.parse(context.run_config)
    use_threads(config)
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
        start = _start(grid, config, ready, run, checkpoint)
        if checkpoint is not None:
            run.go_back_to(checkpoint.records)
            checkpoints.forget_after(checkpoint.server_round)
            log(INFO, "Going on after round %d", checkpoint.server_round)
        run.write_config(config, context.run_id, start.about)
        if config.pictures:
            plot_partition(run, start.roster, ready.images.class_names)
        participation = _participation(config, run)
        recorder = Recorder(config, run, checkpoints, start.about, participation)
        federation = Federation(
            config,
            grid,
            start.strategy,
            start.roster,
            start.parameters,
            ready.images.description.to_config(),
            participation,
        )
        try:
            arrays = start.arrays
            if not recorder.stopped:
                arrays = run_rounds(
                    federation,
                    arrays,
                    first_round=start.first_round,
                    evaluate=_evaluation(config, ready),
                    done=recorder.done,
                )
            summary = _finish(config, run, recorder, start.strategy, arrays, started)
        except Exception as problem:
            # Whatever it was, what is there is not lost.
            what = str(problem) or type(problem).__name__
            raise RuntimeError(f"{what}\n{recorder.how_to_go_on()}") from problem
    log(INFO, "Score: %.2f %%", 100 * summary["score"])
    log(INFO, "Results: %s", run.path)


class _Start(NamedTuple):
    """What the first round of this process starts from."""

    roster: Roster
    strategy: LayerSelection
    parameters: list[str]
    arrays: ArrayRecord
    first_round: int
    about: dict[str, Any]


def _start(
    grid: Grid,
    config: RunConfig,
    ready: Prepared,
    run: RunDirectory,
    checkpoint: Checkpoint | None,
) -> _Start:
    """Gather the nodes, build the strategy, take up the checkpoint if there is one."""
    data = about_data(ready.images)
    known = None if checkpoint is None else checkpoint.about
    if checkpoint is not None:
        check_goes_on(run.path, checkpoint, config, data)
    description = ready.images.description.to_config()
    roster = gather(grid, config, description, known, run.path)
    parameters = [name for name, _ in ready.model.named_parameters()]
    strategy = _strategy(config, ready, parameters, len(roster.members))
    about = {
        **about_nodes(grid, roster),
        "data": data,
        "eligible-layers": ready.eligible,
        "candidate-layers": strategy.layers,
        "parameters": sum(p.numel() for p in ready.model.parameters()),
        "fab-hash": grid.run.fab_hash,
    }
    arrays, first_round = to_arrays(ready.model.state_dict()), 1
    if checkpoint is not None:
        arrays = _take_up(checkpoint, strategy, arrays)
        first_round = checkpoint.server_round + 1
    return _Start(roster, strategy, parameters, arrays, first_round, about)


def _finish(
    config: RunConfig,
    run: RunDirectory,
    recorder: Recorder,
    strategy: LayerSelection,
    arrays: ArrayRecord,
    started: float,
) -> dict[str, Any]:
    """Write what a complete run leaves; return its summary."""
    run.save_model(to_tensors(arrays))
    if recorder.best_arrays is not None:
        best = to_tensors(recorder.best_arrays)
        run.save_model(best, "best_model.safetensors")
    if config.pictures:
        plot_rounds(run, config)
    return run.write_summary(
        no_op_rounds=_no_op_choices(config, strategy, run.records),
        stopped_early=recorder.stopped,
        seconds=round(time.monotonic() - started, 3),
    )


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
        if run.records:
            log(INFO, "Clients take up the state they have in %s", config.state_dir)
        return Participation(run.records, run.short_name)
    if run.records:
        log(
            WARNING,
            "clients go on without the state that %s had given them: state-dir is not "
            "set",
            config.algorithm,
        )
    return Participation()


def _evaluation(
    config: RunConfig, ready: Prepared
) -> Callable[[ArrayRecord], Evaluation]:
    """Return what measures a model on the test images, in a thread of its own."""
    model, images, device = ready.model.to(ready.device), ready.images, ready.device
    test, test_labels = _tensors(images, images.test, images.test_labels, device)
    extra_tests = {
        name: _tensors(images, *test_set, device)
        for name, test_set in images.extra_tests.items()
    }

    fused = FusedModel(model, test[:1])

    def evaluate_arrays(arrays: ArrayRecord) -> Evaluation:
        use_threads(config)
        load_arrays(model, arrays)
        return evaluate(fused.current(), test, test_labels, extra_tests)

    return evaluate_arrays


def _tensors(
    images: ImageDataset, pixels: Pixels, labels: NDArray[np.int64], device: str
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
        drift_parameters=parameters,
        # The app draws the participants itself: the strategy takes all it sees.
        fraction_train=1.0,
        min_train_nodes=1,
        min_available_nodes=1,
    )


def _no_op_choices(
    config: RunConfig, strategy: LayerSelection, records: list[RoundRecord]
) -> int | None:
    """Count the rounds whose scores would have chosen a layer without effect.

    Those are the rounds that would have been plain backpropagation with
    ``candidates = "all"``, the paper's rule.
    """
    if config.flfa not in ("lowest", "highest") or config.candidates == "all":
        return None
    context = RuleContext(num_layers=config.num_fa_layers)
    chosen = [RULES[config.flfa](record.scores, context) for record in records]
    return sum(not set(names) & set(strategy.layers) for names in chosen)
