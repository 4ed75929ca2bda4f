"""The rounds of a run, from the first to the last.

A round's model is evaluated and recorded in a second thread while the clients train
the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO, LogRecord, getLogger
from math import ceil
from threading import get_ident
from typing import Any

from flwr.app import ArrayRecord, RecordDict
from flwr.common.logger import log

from clients.feedback.diagnostics import ANGLE, ERROR
from flfa_app.arrays import with_dtypes_of
from flfa_app.config import RunConfig
from flfa_app.results.checkpoint import non_finite_arrays
from flfa_app.results.records import Evaluation, RoundRecord, Timing, Traffic
from flfa_app.server.round import RoundTrainer
from strategies import LayerSelection, ServerState
from strategies.decoding import DecodedArrays

__all__ = ["is_evaluated", "run_rounds"]

RecordRound = Callable[[RoundRecord, ArrayRecord, ServerState], bool]


def run_rounds(
    trainer: RoundTrainer,
    arrays: ArrayRecord,
    *,
    first_round: int,
    evaluate: Callable[[ArrayRecord], Evaluation],
    record_round: RecordRound,
) -> ArrayRecord:
    """Run the rounds from the first one to the last; return the final model.

    Parameters
    ----------
    trainer : RoundTrainer
        Trains a round with the clients.
    arrays : ArrayRecord
        The model the first round starts from.
    first_round : int
        1, or the round after a checkpoint's.
    evaluate : Callable[[ArrayRecord], Evaluation]
        Evaluates a model on the test set.
    record_round : Callable[[RoundRecord, ArrayRecord, ServerState], bool]
        Takes the record of each round, the model after it and the strategy's state;
        returns whether the round was the last.
    """
    started = time.monotonic()
    config = trainer.config
    last_round = config.num_server_rounds

    def finish(record: RoundRecord, arrays: ArrayRecord, state: ServerState) -> bool:
        """Evaluate and record a trained round; return whether it was the last."""
        server_round = record.server_round
        begin = time.perf_counter()
        evaluation = evaluate(arrays) if is_evaluated(server_round, config) else None
        timing = replace(record.timing, evaluate=_seconds_since(begin))
        record = replace(record, evaluation=evaluation, timing=timing)
        is_last = record_round(record, arrays, state)
        per_round = (time.monotonic() - started) / (server_round - first_round + 1)
        _log_round(record, last_round, per_round * (last_round - server_round))
        return is_last

    with ThreadPoolExecutor(1, "evaluation") as evaluation_thread:
        previous: Future[bool] | None = None
        for server_round in range(first_round, last_round + 1):
            with _flower_info_muted():
                record, arrays = _train_round(trainer, server_round, arrays, previous)
            if trainer.history is not None:
                trainer.history.add_round(record)
            state = trainer.strategy.server_state()
            previous = evaluation_thread.submit(finish, record, arrays, state)
            if server_round == last_round or not _may_overlap(config):
                is_last = previous.result()
                if is_last:
                    break
    return arrays


def is_evaluated(server_round: int, config: RunConfig) -> bool:
    """Whether the model is evaluated after a round.

    It always is in the last 10 % of the rounds, because the score is their mean.
    """
    last_round = config.num_server_rounds
    is_scored = server_round > last_round - ceil(last_round / 10)
    return is_scored or server_round % config.evaluate_every == 0


def _may_overlap(config: RunConfig) -> bool:
    """Whether the next round may start before a model is evaluated and recorded.

    It may not if the evaluation decides whether there is a next round, or if the
    messages depend on which checkpoints exist.
    """
    return not (config.patience or config.target_accuracy or config.state_dir)


def _train_round(
    trainer: RoundTrainer,
    server_round: int,
    arrays: ArrayRecord,
    previous: Future[bool] | None,
) -> tuple[RoundRecord, ArrayRecord]:
    """Train and aggregate a round; return its record without evaluation, and the model.

    ``previous`` is the evaluation of the previous round. It is awaited after the
    training, and its exceptions are raised here.
    """
    config, strategy = trainer.config, trainer.strategy
    selected = tuple(strategy.selected)
    begin = time.perf_counter()
    trained = trainer.train(server_round, arrays)
    train_seconds = _seconds_since(begin)
    if previous is not None:
        previous.result()
    replies = list(trained.replies.aggregated.values())
    begin = time.perf_counter()
    aggregated, metrics = strategy.aggregate_train(server_round, replies)
    measured = strategy.last_aggregate
    if aggregated is None or metrics is None or measured is None:
        raise RuntimeError(f"round {server_round}: nothing to aggregate")
    arrays = with_dtypes_of(arrays, aggregated)
    aggregate_seconds = _seconds_since(begin)
    if invalid := non_finite_arrays(DecodedArrays(arrays)):
        raise RuntimeError(
            f"round {server_round}: {', '.join(invalid)} of the new model is not "
            "finite, though all updates were; set max-update-norm"
        )
    record = RoundRecord(
        server_round,
        drift=measured.drift,
        selected=selected,
        scores=_all_scores(strategy, trainer.parameters),
        train_loss=metrics["train-loss"],  # type: ignore[arg-type]
        learning_rate=config.learning_rate_in(server_round),
        participants=tuple(sorted(trained.replies.participants)),
        failed=tuple(sorted(trained.replies.problems)),
        failed_before=tuple(trained.failed_before),
        spare=tuple(trained.replies.spare),
        traffic=Traffic(
            bytes_sent=sum(_num_bytes(message.content) for message in trained.messages),
            bytes_received=sum(_num_bytes(reply.content) for reply in replies),
        ),
        diagnostics=_diagnostics(metrics, selected),
        timing=Timing(train=train_seconds, aggregate=aggregate_seconds),
    )
    return record, arrays


def _all_scores(
    strategy: LayerSelection, parameters: Sequence[str]
) -> dict[str, float]:
    """Return the scores of all layers in the order of the model."""
    scores = {**strategy.scores, **strategy.observed_scores}
    layers = (name.removesuffix(".weight") for name in parameters)
    return {layer: scores[layer] for layer in layers if layer in scores}


def _diagnostics(
    metrics: Mapping[str, Any], selected: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the clients' mean angle and error of each layer, if they were measured."""
    measured = {
        layer: {
            name: metrics[f"{key}/{layer}"]
            for name, key in (("angle", ANGLE), ("error", ERROR))
            if f"{key}/{layer}" in metrics
        }
        for layer in selected
    }
    return measured if any(measured.values()) else {}


def _num_bytes(content: RecordDict) -> int:
    """Return the size of a message's content on the wire."""
    arrays = sum(record.count_bytes() for record in content.array_records.values())
    others = (*content.config_records.values(), *content.metric_records.values())
    return arrays + sum(len(record.deflate()) for record in others)


@contextmanager
def _flower_info_muted() -> Iterator[None]:
    """Hide what strategies log at level INFO: one line a round is enough."""
    thread = get_ident()

    def is_shown(record: LogRecord) -> bool:
        return record.levelno > INFO or record.thread != thread

    logger = getLogger("flwr")
    logger.addFilter(is_shown)
    try:
        yield
    finally:
        logger.removeFilter(is_shown)


def _seconds_since(begin: float) -> float:
    return round(time.perf_counter() - begin, 3)


def _log_round(record: RoundRecord, num_rounds: int, remaining: float) -> None:
    minutes, seconds = divmod(round(remaining), 60)
    log(INFO, "%s  left %d:%02d", record.describe(num_rounds), minutes, seconds)
