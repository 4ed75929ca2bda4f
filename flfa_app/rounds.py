"""The rounds of a run: Flower's hooks, in an order that is the same every time."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import INFO, WARNING, LogRecord, getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from clients.diagnostics import ANGLE, ERROR
from flfa_app.arrays import with_dtypes_of
from flfa_app.config import RunConfig
from flfa_app.roster import Member, Participants, Roster
from strategies import LayerSelection, local_drift

__all__ = ["run_rounds"]

Row = dict[str, Any]
LOGGER = getLogger("flwr")


def run_rounds(
    config: RunConfig,
    grid: Grid,
    strategy: LayerSelection,
    roster: Roster,
    arrays: ArrayRecord,
    *,
    parameters: Sequence[str],
    data: Mapping[str, Any],
    evaluate: Callable[[ArrayRecord], Row],
    record: Callable[[Row], None],
) -> ArrayRecord:
    """Run all rounds; return the final arrays.

    Parameters
    ----------
    config : RunConfig
        The run.
    grid : Grid
        The federation.
    strategy : LayerSelection
        The server side of the method.
    roster : Roster
        Who is there.
    arrays : ArrayRecord
        The initial model.
    parameters : Sequence[str]
        Names of the arrays that are parameters, not buffers; drift is theirs.
    data : Mapping[str, Any]
        What the clients have to know of the data; goes into every message's config.
    evaluate : Callable[[ArrayRecord], dict[str, Any]]
        The figures of a model, its accuracy among them.
    record : Callable[[dict[str, Any]], None]
        Takes the line of each round.
    """
    started = time.monotonic()
    for server_round in range(1, config.num_server_rounds + 1):
        seconds: dict[str, float] = {}
        members = roster.draw(
            fraction=config.fraction_train,
            least=config.min_train_nodes,
            seed=config.seed,
            server_round=server_round,
        )
        selected = strategy.selected[:]
        with _timed(seconds, "train"), _without_flowers_own_lines():
            view = Participants(grid, members)
            orders = ConfigRecord(dict(data))
            messages = list(
                strategy.configure_train(server_round, arrays, orders, view)
            )
            order = {member.node_id: i for i, member in enumerate(members)}
            messages.sort(key=lambda message: order[message.metadata.dst_node_id])
            replies = list(
                grid.send_and_receive(messages, timeout=config.round_timeout)
            )
        replies = _good_replies(replies, members, roster, server_round)
        with _timed(seconds, "aggregate"), _without_flowers_own_lines():
            aggregated, metrics = strategy.aggregate_train(server_round, replies)
            if aggregated is None or metrics is None:
                raise RuntimeError(f"round {server_round}: nothing to aggregate")
            drift = _drift(replies, parameters)
            arrays = with_dtypes_of(arrays, aggregated)
        with _timed(seconds, "evaluate"):
            figures = evaluate(arrays)
        row = {
            "round": server_round,
            **figures,
            "drift": drift,
            "selected": selected,
            "scores": _all_scores(strategy, parameters),
            "train-loss": metrics["train-loss"],
            "learning-rate": config.learning_rate_in(server_round),
            "participants": sorted(member.partition_id for member in members),
            "failed": _failed(members, replies, roster),
            "bytes-sent": sum(_size(message.content) for message in messages),
            "bytes-received": sum(_size(reply.content) for reply in replies),
            **_diagnostics(metrics, selected),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }
        record(row)
        _report(row, config.num_server_rounds, time.monotonic() - started)
    return arrays


def _good_replies(
    replies: Sequence[Message],
    members: Sequence[Member],
    roster: Roster,
    server_round: int,
) -> list[Message]:
    """Return the replies without error in the order of the partitions.

    Sums of floats depend on their order, and replies come as they are ready.
    """
    good: dict[int, Message] = {}
    reasons: list[str] = []
    for reply in replies:
        if reply.has_error():
            reasons.append(_cause(str(reply.error.reason)))
        else:
            member = roster.by_node[reply.metadata.src_node_id]
            good[member.partition_id] = reply
    if missing := len(members) - len(replies):
        reasons.append(f"{missing} without a reply within round-timeout")
    if not good:
        raise RuntimeError(
            f"round {server_round}: none of {len(members)} clients has sent an update: "
            + "; ".join(dict.fromkeys(reasons))
        )
    for reason, times in Counter(reasons).items():
        left_out = "a client" if times == 1 else f"{times} clients"
        log(WARNING, "round %d goes on without %s: %s", server_round, left_out, reason)
    return [good[partition] for partition in sorted(good)]


def _failed(
    members: Sequence[Member], replies: Sequence[Message], roster: Roster
) -> list[int]:
    """Return the partitions of the participants without an update."""
    replied = {roster.by_node[r.metadata.src_node_id].partition_id for r in replies}
    return sorted({member.partition_id for member in members} - replied)


def _cause(reason: str) -> str:
    """Return the last line of an error that names one: Ray sends whole tracebacks."""
    lines = [line.strip().rstrip("'>") for line in reason.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines or ["no reason given"])[-1]


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


def _report(row: Row, num_rounds: int, elapsed: float) -> None:
    done = row["round"]
    left = elapsed / done * (num_rounds - done)
    log(
        INFO,
        "round %*d/%d  accuracy %5.2f %%  drift %.3f  FA: %s  %.1f s  left %d:%02d",
        len(str(num_rounds)),
        done,
        num_rounds,
        100 * row["accuracy"],
        row["drift"],
        ", ".join(row["selected"]) or "-",
        sum(row["seconds"].values()),
        *divmod(round(left), 60),
    )
