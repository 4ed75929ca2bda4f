"""The rounds of a run: Flower's hooks, in an order that is the same every time."""

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
from flfa_app.results.checkpoint import not_finite
from flfa_app.results.records import Evaluation, RoundRecord, Timing, Traffic
from flfa_app.server.round import Federation
from strategies import LayerSelection, ServerState
from strategies.decoding import DecodedArrays

__all__ = ["evaluated_in", "run_rounds"]

Done = Callable[[RoundRecord, ArrayRecord, ServerState], bool]
LOGGER = getLogger("flwr")


def run_rounds(
    federation: Federation,
    arrays: ArrayRecord,
    *,
    first_round: int,
    evaluate: Callable[[ArrayRecord], Evaluation],
    done: Done,
) -> ArrayRecord:
    """Run the rounds from the first one to the last; return the final model.

    A model is evaluated, and its round kept, while the clients train the next one.

    Parameters
    ----------
    federation : Federation
        Who trains, and how.
    arrays : ArrayRecord
        The model the first round starts from.
    first_round : int
        1, or the one after a checkpoint's.
    evaluate : Callable[[ArrayRecord], Evaluation]
        Measures a model on the test set.
    done : Callable[[RoundRecord, ArrayRecord, ServerState], bool]
        Takes the record of each round, the model after it and what else the next round
        depends on; returns whether it was the last.
    """
    started = time.monotonic()
    config = federation.config
    last_round = config.num_server_rounds

    def finish(record: RoundRecord, arrays: ArrayRecord, state: ServerState) -> bool:
        server_round, evaluation = record.server_round, None
        begun = time.perf_counter()
        if evaluated_in(server_round, config):
            evaluation = evaluate(arrays)
        timing = replace(record.timing, evaluate=_seconds_since(begun))
        record = replace(record, evaluation=evaluation, timing=timing)
        is_last = done(record, arrays, state)
        elapsed = time.monotonic() - started
        left = elapsed / (server_round - first_round + 1) * (last_round - server_round)
        _report(record, last_round, left)
        return is_last

    with ThreadPoolExecutor(1, "evaluation") as aside:
        before: Future[bool] | None = None
        for server_round in range(first_round, last_round + 1):
            with _without_flowers_own_lines():
                record, new = _train(federation, server_round, arrays, before)
            arrays = new
            if federation.participation is not None:
                federation.participation.add(record)
            state = federation.strategy.server_state()
            before = aside.submit(finish, record, arrays, state)
            if (server_round == last_round or not _may_overlap(config)) and (
                before.result()
            ):
                break
    return arrays


def evaluated_in(server_round: int, config: RunConfig) -> bool:
    """Whether the model is evaluated after a round.

    The last 10 % of the rounds always are: the score is their mean.
    """
    last = config.num_server_rounds
    scored = server_round > last - ceil(last / 10)
    return scored or server_round % config.evaluate_every == 0


def _may_overlap(config: RunConfig) -> bool:
    """Whether the next round may begin before a model is evaluated and kept.

    Not if the evaluation decides whether there is one, or if clients are told which
    checkpoints there are.
    """
    return not (config.patience or config.target_accuracy or config.state_dir)


def _train(
    federation: Federation,
    server_round: int,
    arrays: ArrayRecord,
    before: Future[bool] | None,
) -> tuple[RoundRecord, ArrayRecord]:
    """Train and aggregate; return the record of the round so far and the new model.

    The round before is waited for while nothing else is to be done.
    """
    config, strategy = federation.config, federation.strategy
    selected = tuple(strategy.selected)
    started = time.perf_counter()
    answers, messages, failed_before = federation.train(server_round, arrays)
    train_seconds = _seconds_since(started)
    if before is not None:
        before.result()  # raises what went wrong there
    replies = list(answers.counted.values())
    started = time.perf_counter()
    aggregated, metrics = strategy.aggregate_train(server_round, replies)
    measured = strategy.last_aggregate
    if aggregated is None or metrics is None or measured is None:
        raise RuntimeError(f"round {server_round}: nothing to aggregate")
    arrays = with_dtypes_of(arrays, aggregated)
    aggregate_seconds = _seconds_since(started)
    if broken := not_finite(DecodedArrays(arrays)):
        raise RuntimeError(
            f"round {server_round}: {', '.join(broken)} of the new model is not "
            "finite, though all updates were; set max-update-norm"
        )
    record = RoundRecord(
        server_round,
        drift=measured.drift,
        selected=selected,
        scores=_all_scores(strategy, federation.parameters),
        train_loss=metrics["train-loss"],  # type: ignore[arg-type]
        learning_rate=config.learning_rate_in(server_round),
        participants=tuple(sorted(member.partition_id for member in answers.asked)),
        failed=tuple(sorted(answers.problems)),
        failed_before=tuple(failed_before),
        spare=tuple(answers.spare),
        traffic=Traffic(
            bytes_sent=sum(_size(message.content) for message in messages),
            bytes_received=sum(_size(reply.content) for reply in replies),
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
    """Return the clients' mean angle and error of each layer, if they measured them."""
    measured = {
        layer: {
            name: metrics[f"{key}/{layer}"]
            for name, key in (("angle", ANGLE), ("error", ERROR))
            if f"{key}/{layer}" in metrics
        }
        for layer in selected
    }
    return measured if any(measured.values()) else {}


def _size(content: RecordDict) -> int:
    """Return the bytes of a message's content as it goes over the wire."""
    arrays = sum(record.count_bytes() for record in content.array_records.values())
    others = (*content.config_records.values(), *content.metric_records.values())
    return arrays + sum(len(record.deflate()) for record in others)


@contextmanager
def _without_flowers_own_lines() -> Iterator[None]:
    """Leave out what strategies log in each round: one line a round is enough."""
    here = get_ident()

    def warnings_only(record: LogRecord) -> bool:
        return record.levelno > INFO or record.thread != here

    LOGGER.addFilter(warnings_only)
    try:
        yield
    finally:
        LOGGER.removeFilter(warnings_only)


def _seconds_since(started: float) -> float:
    return round(time.perf_counter() - started, 3)


def _report(record: RoundRecord, num_rounds: int, left: float) -> None:
    minutes, seconds = divmod(round(left), 60)
    log(INFO, "%s  left %d:%02d", record.describe(num_rounds), minutes, seconds)
