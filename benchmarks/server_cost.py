"""``python -m benchmarks.server_cost``: what a round costs the server.

Ten replies with the arrays of MobileNetV2, as they come from Flower: all of them
checked, averaged, their layers scored and their drift measured, as the app does it with
FedAvg and all layers to choose from. Against it the plain weighted average of the same
replies in NumPy: decode as Flower does, multiply, add. Decoding is most of that; the
ratio to multiplying and adding alone, of arrays that are decoded already, is reported
beside it. All take turns. The processor's time is counted, not the clock's, which runs
on while other programs do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from logging import WARNING, getLogger
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.figures import Figure, of_measurements, output_file, publish
from clients import eligible_layers
from flfa_app.arrays import to_arrays
from flfa_app.models import build_model
from strategies import FLFAFedAvg, ReplyRules, problem_of

__all__ = ["ServerRound", "main"]

GOAL = "<= 2"
REPLIES = 10
METRICS = ("num-examples", "partition-id", "train-loss", "steps")  # of a reply
# Replies beyond these have the values of earlier ones: they take no more memory, and
# the server cannot know it.
DISTINCT = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the goal is missed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.server_cost", description=__doc__
    )
    parser.add_argument("--repetitions", type=int, default=20, help="rounds (20)")
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    if options.repetitions < 2:
        parser.error("--repetitions must be 2 or more")
    return publish(_measure(ServerRound(REPLIES), options.repetitions), options.json)


class ServerRound:
    """The replies to a round's messages, and all that the server does with them."""

    def __init__(self, number: int) -> None:
        # Flower sets these in the server's process; a message needs them.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        model = build_model(
            "mobilenet_v2", channels=3, size=28, classes=8, norm="batch", seed=0
        )
        self.parameters = [name for name, _ in model.named_parameters()]
        self.sent = to_arrays(model.state_dict())
        self.strategy = FLFAFedAvg(
            layers=eligible_layers(model),
            drift_parameters=self.parameters,
            min_train_nodes=1,
            min_available_nodes=1,
        )
        self.rules = ReplyRules(keys=METRICS, parameters=frozenset(self.parameters))
        grid = cast(Grid, _Nodes(number))  # asked who is there, no more
        with _without_flowers_own_lines():
            messages = self.strategy.configure_train(1, self.sent, ConfigRecord(), grid)
        records: list[ArrayRecord] = []
        for i in range(number):
            records.append(
                _trained(self.sent, i)
                if i < DISTINCT
                else _again(records[i - DISTINCT])
            )
        self.replies = [
            _reply(message, i, record)
            for i, (message, record) in enumerate(zip(messages, records, strict=True))
        ]

    def check(self) -> None:
        """Look at every reply, as when it arrives."""
        for reply in self.replies:
            if problem := problem_of(reply, self.sent, self.rules):
                raise RuntimeError(f"a reply was rejected: {problem}")

    def aggregate(self) -> ArrayRecord:
        """Average, score the layers, measure the drift."""
        with _without_flowers_own_lines():
            arrays, _ = self.strategy.aggregate_train(1, self.replies)
        if arrays is None or self.strategy.last_aggregate is None:
            raise RuntimeError("nothing was aggregated")
        return arrays

    def average(self) -> dict[str, npt.NDArray[Any]]:
        """Do only what has to be done, with NumPy."""
        records = (reply.content.array_records["arrays"] for reply in self.replies)
        return self._average(
            ((name, array.numpy()) for name, array in record.items())
            for record in records
        )

    def average_decoded(self) -> dict[str, npt.NDArray[Any]]:
        """Do the same with arrays that need not be decoded."""
        return self._average(one.items() for one in self.decoded)

    @cached_property
    def decoded(self) -> list[dict[str, npt.NDArray[Any]]]:
        """The arrays of the replies."""
        records = (reply.content.array_records["arrays"] for reply in self.replies)
        return [{name: a.numpy() for name, a in one.items()} for one in records]

    def _average(
        self, clients: Iterable[Iterable[tuple[str, npt.NDArray[Any]]]]
    ) -> dict[str, npt.NDArray[Any]]:
        weights: list[Any] = [
            reply.content.metric_records["metrics"]["num-examples"]
            for reply in self.replies
        ]
        mean: dict[str, npt.NDArray[Any]] = {}
        for arrays, weight in zip(clients, weights, strict=True):
            factor = weight / sum(weights)
            for name, values in arrays:
                if name in mean:
                    mean[name] += values * factor
                else:
                    mean[name] = values * factor
        return mean


@contextmanager
def _without_flowers_own_lines() -> Iterator[None]:
    logger = getLogger("flwr")
    before = logger.level
    logger.setLevel(WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


class _Nodes:
    def __init__(self, number: int) -> None:
        self.number = number

    def get_node_ids(self) -> range:
        return range(1, self.number + 1)


def _trained(sent: ArrayRecord, seed: int) -> ArrayRecord:
    """Return arrays as if they had been trained; whole numbers count on."""
    draw = np.random.default_rng(seed)
    new = {}
    for name, array in sent.items():
        values = array.numpy()
        step = 1 if values.dtype.kind == "i" else draw.normal(0, 0.01, values.shape)
        new[name] = Array(np.asarray(values + step, values.dtype))
    return ArrayRecord(new)


def _again(record: ArrayRecord) -> ArrayRecord:
    """Return other arrays with the same bytes."""
    return ArrayRecord(
        {k: Array(a.dtype, a.shape, a.stype, a.data) for k, a in record.items()}
    )


def _reply(message: Message, place: int, arrays: ArrayRecord) -> Message:
    figures = (100 + place, place, 1.0 / (1 + place), 10)
    metrics = MetricRecord(dict(zip(METRICS, figures, strict=True)))
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)


def _measure(server_round: ServerRound, repetitions: int) -> list[Figure]:
    arms = (
        server_round.average,
        server_round.average_decoded,
        server_round.check,
        server_round.aggregate,
    )
    for arm in arms:
        arm()  # for caches
    seconds = np.empty((repetitions, len(arms)))
    for i in range(repetitions):
        order = range(len(arms)) if i % 2 else reversed(range(len(arms)))
        for place in order:
            seconds[i, place] = _seconds(arms[place])
    plain, decoded, check, aggregate = seconds.T
    name = f"the server's share of a round, {REPLIES} replies of `mobilenet_v2`"
    return [
        of_measurements(f"{name} / a plain average", (check + aggregate) / plain, GOAL),
        of_measurements(
            "the same / a plain average of decoded arrays",
            (check + aggregate) / decoded,
        ),
        of_measurements("the check of its replies / a plain average", check / plain),
        of_measurements(
            "average, scores and drift / a plain average", aggregate / plain
        ),
    ]


def _seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    sys.exit(main())
