"""The ServerApp: from the run config to the results of a run."""

from __future__ import annotations

import time
from logging import INFO

from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from flfa_app.config import RunConfig
from flfa_app.preflight import Prepared, prepare
from flfa_app.results.checkpoint import Checkpoints
from flfa_app.results.resume import find_run_to_resume
from flfa_app.results.run_directory import RunDirectory
from flfa_app.server.client_history import ClientHistory
from flfa_app.server.evaluation import Evaluator
from flfa_app.server.loop import run_rounds
from flfa_app.server.recorder import Recorder
from flfa_app.server.round import RoundTrainer
from flfa_app.server.simulation_engine import dispatch_in_sending_order
from flfa_app.server.startup import RunStart, start_run
from flfa_app.task import use_threads

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FLFA. Whatever can be checked is checked before the first round."""
    started = time.monotonic()
    dispatch_in_sending_order(grid)
    config = RunConfig.parse(context.run_config)
    use_threads(config)
    prepared = prepare(config)
    resumed_path = find_run_to_resume(config)
    if resumed_path is None:
        run = RunDirectory.create(config, context.run_id)
    else:
        run = RunDirectory(resumed_path, config.model)
    log(INFO, "Results: %s", run.path)
    with run.lock():
        checkpoints = Checkpoints(run.path, config.keep_checkpoints)
        checkpoint = None if resumed_path is None else checkpoints.newest()
        start = start_run(grid, config, prepared, run.path, checkpoint)
        if checkpoint is not None:
            run.restore(checkpoint.records)
            checkpoints.delete_after(checkpoint.server_round)
            log(INFO, "Resuming after round %d", checkpoint.server_round)
        run.write_config(config, context.run_id, start.metadata)
        if config.pictures:
            label_counts = [node.label_counts for node in start.registry.nodes]
            run.plot_partition(label_counts, prepared.images.class_names)
        history = ClientHistory.of_run(config, run)
        recorder = Recorder(config, run, checkpoints, start.metadata, history)
        try:
            arrays = _train(grid, config, prepared, start, history, recorder)
            seconds = time.monotonic() - started
            summary = recorder.finish(arrays, start.strategy, seconds)
        except Exception as error:
            cause = str(error) or type(error).__name__
            raise RuntimeError(f"{cause}\n{recorder.how_to_resume()}") from error
    log(INFO, "Score: %.2f %%", 100 * summary["score"])
    log(INFO, "Results: %s", run.path)


def _train(
    grid: Grid,
    config: RunConfig,
    prepared: Prepared,
    start: RunStart,
    history: ClientHistory | None,
    recorder: Recorder,
) -> ArrayRecord:
    """Run the remaining rounds; return the final model."""
    if recorder.stop_reason:  # a resumed run that had ended early
        return start.arrays
    trainer = RoundTrainer(
        config,
        grid,
        start.strategy,
        start.registry,
        start.parameters,
        prepared.images.description.to_config(),
        history,
    )
    return run_rounds(
        trainer,
        start.arrays,
        first_round=start.first_round,
        evaluate=Evaluator(config, prepared).evaluate,
        record_round=recorder.record_round,
    )
