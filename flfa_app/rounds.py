"""The rounds of a run: Flower's hooks, in an order that is the same every time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import INFO, LogRecord, getLogger
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.logger import log

from clients.diagnostics import ANGLE, ERROR
from flfa_app.arrays import with_dtypes_of
from flfa_app.checkpoint import not_finite
from flfa_app.federation import Federation
from strategies import LayerSelection, local_drift

__all__ = ["run_rounds"]

Row = dict[str, Any]
LOGGER = getLogger("flwr")


def run_rounds(
    federation: Federation,
    arrays: ArrayRecord,
    *,
    first_round: int,
    evaluate: Callable[[ArrayRecord], Row],
    done: Callable[[Row, ArrayRecord], bool],
) -> ArrayRecord:
    """Run the rounds from the first one to the last; return the final model.

    Parameters
    ----------
    federation : Federation
        Who trains, and how.
    arrays : ArrayRecord
        The model the first round starts from.
    first_round : int
        1, or the one after a checkpoint's.
    evaluate : Callable[[ArrayRecord], dict[str, Any]]
        The figures of a model, its accuracy among them.
    done : Callable[[dict[str, Any], ArrayRecord], bool]
        Takes the line of each round and the model after it; returns whether it was the
        last.
    """
    started = time.monotonic()
    last_round = federation.config.num_server_rounds
    for server_round in range(first_round, last_round + 1):
        row, arrays = _run_round(federation, server_round, arrays, evaluate)
        is_last = done(row, arrays)
        elapsed = time.monotonic() - started
        left = elapsed / (server_round - first_round + 1) * (last_round - server_round)
        _report(row, last_round, left)
        if is_last:
            break
    return arrays


def _run_round(
    federation: Federation,
    server_round: int,
    arrays: ArrayRecord,
    evaluate: Callable[[ArrayRecord], Row],
) -> tuple[Row, ArrayRecord]:
    """Train, aggregate and evaluate; return the line of the round and the new model."""
    config, strategy = federation.config, federation.strategy
    seconds: dict[str, float] = {}
    selected = strategy.selected[:]
    with _timed(seconds, "train"), _without_flowers_own_lines():
        answers, messages = federation.train(server_round, arrays)
    replies = list(answers.counted.values())
    with _timed(seconds, "aggregate"), _without_flowers_own_lines():
        aggregated, metrics = strategy.aggregate_train(server_round, replies)
        if aggregated is None or metrics is None:
            raise RuntimeError(f"round {server_round}: nothing to aggregate")
        drift = _drift(replies, federation.parameters)
        arrays = with_dtypes_of(arrays, aggregated)
    if broken := not_finite({name: array.numpy() for name, array in arrays.items()}):
        raise RuntimeError(
            f"round {server_round}: {', '.join(broken)} of the new model is not "
            "finite, though all updates were; set max-update-norm"
        )
    with _timed(seconds, "evaluate"):
        figures = evaluate(arrays)
    row = {
        "round": server_round,
        **figures,
        "drift": drift,
        "selected": selected,
        "scores": _all_scores(strategy, federation.parameters),
        "train-loss": metrics["train-loss"],
        "learning-rate": config.learning_rate_in(server_round),
        "participants": sorted(member.partition_id for member in answers.asked),
        "failed": sorted(answers.problems),
        "spare": answers.spare,
        "bytes-sent": sum(_size(message.content) for message in messages),
        "bytes-received": sum(_size(reply.content) for reply in replies),
        **_diagnostics(metrics, selected),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }
    return row, arrays


def _drift(replies: Sequence[Message], parameters: Sequence[str]) -> float:
    arrays = [next(iter(reply.content.array_records.values())) for reply in replies]
    decoded = [{name: record[name].numpy() for name in parameters} for record in arrays]
    return local_drift(decoded, parameters)


def _all_scores(
    strategy: LayerSelection, parameters: Sequence[str]
) -> dict[str, float]:
    """Return the scores of all layers in the order of the model."""
    scores = {**strategy.scores, **strategy.observed_scores}
    layers = (name.removesuffix(".weight") for name in parameters)
    return {layer: scores[layer] for layer in layers if layer in scores}


def _diagnostics(metrics: Mapping[str, Any], selected: Sequence[str]) -> Row:
    """Return the clients' mean angle and error of each layer, if they measured them."""
    measured = {
        layer: {
            name: metrics[f"{key}/{layer}"]
            for name, key in (("angle", ANGLE), ("error", ERROR))
            if f"{key}/{layer}" in metrics
        }
        for layer in selected
    }
    return {"diagnostics": measured} if any(measured.values()) else {}


def _size(content: RecordDict) -> int:
    """Return the bytes of a message's content as it goes over the wire."""
    arrays = sum(record.count_bytes() for record in content.array_records.values())
    others = (*content.config_records.values(), *content.metric_records.values())
    return arrays + sum(len(record.deflate()) for record in others)


@contextmanager
def _without_flowers_own_lines() -> Iterator[None]:
    """Leave out what strategies log in each round: one line a round is enough."""

    def warnings_only(record: LogRecord) -> bool:
        return record.levelno > INFO

    LOGGER.addFilter(warnings_only)
    try:
        yield
    finally:
        LOGGER.removeFilter(warnings_only)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def _report(row: Row, num_rounds: int, left: float) -> None:
    log(
        INFO,
        "round %*d/%d  accuracy %5.2f %%  drift %.3f  FA: %s  %.1f s  left %d:%02d",
        len(str(num_rounds)),
        row["round"],
        num_rounds,
        100 * row["accuracy"],
        row["drift"],
        ", ".join(row["selected"]) or "-",
        sum(row["seconds"].values()),
        *divmod(round(left), 60),
    )
