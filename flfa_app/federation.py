"""One round of training: ask, check the answers, ask others if too few are good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from math import ceil, inf, isclose
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from clients.diagnostics import ANGLE, ERROR
from clients.scaffold import effective_steps
from flfa_app.config import RunConfig
from flfa_app.exchange import Answers, exchange
from flfa_app.participants import Participants
from flfa_app.participation import Participation
from flfa_app.roster import Draw, Member, Roster
from strategies import LayerSelection, ReplyRules, problem_of
from strategies.scaffold import STEP_LENGTH

__all__ = ["Federation", "Trained"]

# What every client of this app reports; a method may need more.
METRICS = ("num-examples", "partition-id", "train-loss", "steps")
# Of Ray: the simulation gives a worker that has died to every further message.
DEAD_WORKER = ("ActorDiedError", "OutOfMemoryError", "actor died", "actor is dead")


class Trained(NamedTuple):
    """A round's answers, of which enough are good, and the messages they answer."""

    answers: Answers
    messages: Sequence[Message]


@dataclass
class Federation:
    """Who computes what: all that is the same in every round.

    Parameters
    ----------
    config : RunConfig
        The run.
    grid : Grid
        Flower's connection to the nodes.
    strategy : LayerSelection
        The server side of the method.
    roster : Roster
        Who is there.
    parameters : Sequence[str]
        Names of the arrays that are parameters, not buffers.
    data : Mapping[str, Any]
        What the clients have to know of the data; goes into every message's config.
    participation : Participation, optional
        Whose replies counted when, for methods whose clients keep a state.
    """

    config: RunConfig
    grid: Grid
    strategy: LayerSelection
    roster: Roster
    parameters: Sequence[str]
    data: Mapping[str, Any]
    participation: Participation | None = None
    _someone_failed: bool = field(default=False, init=False)

    def train(self, server_round: int, arrays: ArrayRecord) -> Trained:
        """Train one round.

        Raises
        ------
        RuntimeError
            If too few answer, however often others are asked.
        """
        config = self.config
        draw = self.roster.draw(
            fraction=config.fraction_train,
            least=config.min_train_nodes,
            seed=config.seed,
            server_round=server_round,
        )
        needed = min(config.min_replies, draw.number)
        for attempt in range(1, config.round_attempts + 1):
            if self._someone_failed or self.roster.away:
                timeout = config.round_timeout
                self.roster.refresh(self.grid, timeout=timeout, data=self.data)
            trained = self._ask(server_round, arrays, draw)
            answers = trained.answers
            self._someone_failed = bool(answers.problems) or not answers.asked
            goes_on = len(answers.good) >= needed
            _report(server_round, answers, goes_on)
            if goes_on:
                return trained
            if attempt < config.round_attempts:
                log(
                    WARNING,
                    "round %d: %s; trying again with others",
                    server_round,
                    _too_few(answers, needed),
                )
        raise RuntimeError(
            f"round {server_round}: {_too_few(answers, needed)}: "
            + ("; ".join(answers.reasons()) or "no client is connected")
        )

    def _ask(self, server_round: int, arrays: ArrayRecord, draw: Draw) -> Trained:
        # The tiny part: 1.3 times 10 is a little more than 13.
        asked = draw.take(ceil(self.config.over_selection * draw.number - 1e-9))
        if not asked:
            return Trained(Answers(asked, draw.number), [])
        messages = self._messages(server_round, arrays, asked)
        sent = messages[asked[0].partition_id].content.array_records["arrays"]
        rules = self._rules()

        def check(member: Member, reply: Message) -> str | None:
            return problem_of(reply, sent, rules) or self._told(
                server_round, member, dict(reply.content.metric_records["metrics"])
            )

        answers = exchange(
            self.grid,
            messages,
            asked,
            wanted=draw.number,
            check=check,
            timeout=self.config.round_timeout,
        )
        _stop_for_dead_workers(server_round, answers)
        return Trained(answers, list(messages.values()))

    def _messages(
        self, server_round: int, arrays: ArrayRecord, asked: Sequence[Member]
    ) -> dict[int, Message]:
        """Return a message for each partition."""
        messages = self.strategy.configure_train(
            server_round,
            arrays,
            ConfigRecord(dict(self.data)),
            Participants(self.grid, asked),
        )
        by_node = {message.metadata.dst_node_id: message for message in messages}
        found = {member.partition_id: by_node[member.node_id] for member in asked}
        if self.participation is None:
            return found
        return {
            partition: _with_orders(message, self.participation.orders(partition))
            for partition, message in found.items()
        }

    def _told(
        self, server_round: int, member: Member, metrics: Mapping[str, Any]
    ) -> str | None:
        """Say what a client cannot be right about, given what is known of it."""
        config, images = self.config, metrics["num-examples"]
        if metrics["partition-id"] != member.partition_id:
            return f"it says it is from partition {metrics['partition-id']}"
        if images > member.num_examples:
            return (
                f"its 'num-examples' is {images}; at the start the client said "
                f"{member.num_examples}"
            )
        steps = config.local_epochs * ceil(images / config.batch_size)
        known = {"steps": float(steps)}
        if STEP_LENGTH in metrics:
            effective = effective_steps(steps, config.momentum)
            known[STEP_LENGTH] = config.learning_rate_in(server_round) * effective
        for name, expected in known.items():
            if not isclose(metrics[name], expected, rel_tol=1e-9):
                return f"its {name!r} is {metrics[name]!r}; it must be {expected!r}"
        return None

    def _rules(self) -> ReplyRules:
        """Return what a reply to the next messages must be like."""
        keys = [*METRICS, *getattr(self.strategy, "reply_metrics", ())]
        if self.config.diagnostics:
            measures = (ERROR,) if self.config.feedback == "dfa" else (ANGLE, ERROR)
            keys += [
                f"{m}/{layer}" for m in measures for layer in self.strategy.selected
            ]
        return ReplyRules(
            keys=keys,
            positive=getattr(self.strategy, "reply_metrics", ()),
            max_weight=self.config.max_examples or inf,
            max_norm=self.config.max_update_norm or inf,
            parameters=frozenset(self.parameters),
        )


def _with_orders(message: Message, orders: Mapping[str, Any]) -> Message:
    """Return a message with more in its config; a strategy's share their content."""
    records: dict[str, Any] = dict(message.content)
    records["config"] = ConfigRecord({**records["config"], **orders})
    return Message(
        RecordDict(records),
        message_type=message.metadata.message_type,
        dst_node_id=message.metadata.dst_node_id,
    )


def _report(server_round: int, answers: Answers, goes_on: bool) -> None:
    for reason, partitions in answers.reasons().items():
        log(
            WARNING,
            "round %d%s partition%s %s: %s",
            server_round,
            " goes on without" if goes_on else ":",
            "" if len(partitions) == 1 else "s",
            ", ".join(map(str, partitions)),
            reason,
        )


def _too_few(answers: Answers, needed: int) -> str:
    return (
        f"{len(answers.good) or 'none'} of {len(answers.asked)} clients has sent a "
        f"good update, min-replies is {needed}"
    )


def _stop_for_dead_workers(server_round: int, answers: Answers) -> None:
    for partition, reason in answers.problems.items():
        if any(mark in reason for mark in DEAD_WORKER):
            raise RuntimeError(
                f"round {server_round}: the worker that computed partition {partition} "
                "has died, and Flower would go on giving it messages; if memory was "
                "short, use fewer workers (--workers)"
            )
