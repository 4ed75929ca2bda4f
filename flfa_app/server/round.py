"""One round of training: ask, check the answers, ask others if too few are good."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from math import ceil
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app.config import RunConfig
from flfa_app.server.client_history import Participation
from flfa_app.server.exchange import Answers, exchange
from flfa_app.server.nodes import Draw, Member, Roster
from flfa_app.server.participants import Participants
from flfa_app.server.reply_checks import contradiction, reply_rules
from flfa_app.server.simulation_engine import is_simulation, stop_for_dead_workers
from strategies import LayerSelection, problem_of

__all__ = ["Federation", "Trained"]

SECONDS_BETWEEN_LOOKS = 3.0


class Trained(NamedTuple):
    """A round's answers, of which enough are good, and what else there was to it."""

    answers: Answers
    messages: Sequence[Message]
    """All that were sent, also those of attempts that came to nothing."""
    failed_before: Sequence[int] = ()
    """The partitions that failed in those attempts."""


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
        needed = config.min_replies
        messages: list[Message] = []
        failed: list[int] = []
        for attempt in range(1, config.round_attempts + 1):
            if self._someone_failed or self.roster.away:
                self._look_who_is_there(server_round, needed)
            trained = self._ask(server_round, arrays, draw)
            answers = trained.answers
            messages += trained.messages
            self._someone_failed = bool(answers.problems) or not answers.asked
            goes_on = len(answers.good) >= needed
            _report(server_round, answers, goes_on)
            if goes_on:
                return Trained(answers, messages, sorted(failed))
            failed += answers.problems
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

    def _look_who_is_there(self, server_round: int, needed: int) -> None:
        """Take note of who has gone and come back; wait if too few are left."""
        timeout, roster = self.config.round_timeout, self.roster
        deadline = time.monotonic() + timeout
        roster.refresh(self.grid, timeout=timeout, data=self.data)
        while (here := len(roster.members) - len(roster.away)) < needed:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            log(
                WARNING,
                "round %d: %d of the %d nodes that min-replies asks for are connected; "
                "waiting, at most %.0f s more (round-timeout)",
                server_round,
                here,
                needed,
                left,
            )
            time.sleep(min(SECONDS_BETWEEN_LOOKS, left))
            roster.refresh(self.grid, timeout=timeout, data=self.data)

    def _ask(self, server_round: int, arrays: ArrayRecord, draw: Draw) -> Trained:
        # The tiny part: 1.3 times 10 is a little more than 13.
        asked = draw.take(ceil(self.config.over_selection * draw.number - 1e-9))
        if not asked:
            return Trained(Answers(asked, draw.number), [])
        messages = self._messages(server_round, arrays, asked)
        sent = messages[asked[0].partition_id].content.array_records["arrays"]
        rules = reply_rules(self.config, self.strategy, self.parameters)

        def check(member: Member, reply: Message) -> str | None:
            return problem_of(reply, sent, rules) or contradiction(
                self.config, server_round, member, reply
            )

        answers = exchange(
            self.grid,
            messages,
            asked,
            wanted=draw.number,
            check=check,
            timeout=self.config.round_timeout,
        )
        if is_simulation(self.grid):  # a real client may write what it likes
            stop_for_dead_workers(server_round, answers.problems)
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
