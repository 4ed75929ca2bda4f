"""One round of training: send the model, check the replies, retry if too few count."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from math import ceil
from typing import Any, NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app.config import RunConfig
from flfa_app.server.client_history import ClientHistory
from flfa_app.server.messaging import RoundReplies, collect_replies
from flfa_app.server.nodes import Node, NodeRegistry
from flfa_app.server.reply_checks import contradiction, reply_rules
from flfa_app.server.sampling import ParticipantGrid, ParticipantSampler
from flfa_app.server.simulation_engine import is_simulation, stop_for_dead_workers
from strategies import LayerSelection, problem_of

__all__ = ["RoundTrainer", "TrainedRound"]

SECONDS_BETWEEN_REFRESHES = 3.0


class TrainedRound(NamedTuple):
    """The replies of a round, of which enough are valid.

    Parameters
    ----------
    replies : RoundReplies
        Those of the last attempt.
    messages : Sequence[Message]
        All messages that were sent, including those of failed attempts.
    failed_before : Sequence[int]
        The partitions that failed in earlier attempts.
    """

    replies: RoundReplies
    messages: Sequence[Message]
    failed_before: Sequence[int] = ()


@dataclass
class RoundTrainer:
    """Trains one round after another with the nodes of a run.

    Parameters
    ----------
    config : RunConfig
        The config of the run.
    grid : Grid
        Flower's connection to the nodes.
    strategy : LayerSelection
        The server side of the method.
    registry : NodeRegistry
        The nodes of the run.
    parameters : Sequence[str]
        Names of the arrays that are parameters, not buffers.
    data : Mapping[str, Any]
        The description of the data set; part of every message's config.
    history : ClientHistory, optional
        In which rounds clients' replies were aggregated; None if the method's clients
        keep no state.
    """

    config: RunConfig
    grid: Grid
    strategy: LayerSelection
    registry: NodeRegistry
    parameters: Sequence[str]
    data: Mapping[str, Any]
    history: ClientHistory | None = None
    _had_failures: bool = field(default=False, init=False)

    def train(self, server_round: int, arrays: ArrayRecord) -> TrainedRound:
        """Train one round; retry with other clients if too few replies are valid.

        Raises
        ------
        RuntimeError
            If too few replies are valid in every attempt.
        """
        config = self.config
        sampler = ParticipantSampler(
            self.registry,
            fraction=config.fraction_train,
            minimum=config.min_train_nodes,
            seed=config.seed,
            server_round=server_round,
        )
        messages: list[Message] = []
        failed: list[int] = []
        for attempt in range(1, config.round_attempts + 1):
            if self._had_failures or self.registry.disconnected:
                self._refresh_nodes(server_round)
            attempted = self._attempt(server_round, arrays, sampler)
            replies = attempted.replies
            messages += attempted.messages
            self._had_failures = bool(replies.problems) or not replies.participants
            enough = len(replies.valid) >= config.min_replies
            _log_problems(server_round, replies, enough)
            if enough:
                return TrainedRound(replies, messages, sorted(failed))
            failed += replies.problems
            if attempt < config.round_attempts:
                log(
                    WARNING,
                    "round %d: %s; retrying with other clients",
                    server_round,
                    _too_few(replies, config.min_replies),
                )
        raise RuntimeError(
            f"round {server_round}: {_too_few(replies, config.min_replies)}: "
            + ("; ".join(replies.partitions_by_problem()) or "no client is connected")
        )

    def _refresh_nodes(self, server_round: int) -> None:
        """Update which nodes are connected; wait if they are fewer than min-replies."""
        timeout, registry = self.config.round_timeout, self.registry
        deadline = time.monotonic() + timeout
        registry.refresh(self.grid, timeout=timeout, data=self.data)
        while registry.num_connected < self.config.min_replies:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            log(
                WARNING,
                "round %d: only %d nodes are connected, min-replies is %d; waiting for "
                "at most %.0f s more (round-timeout)",
                server_round,
                registry.num_connected,
                self.config.min_replies,
                remaining,
            )
            time.sleep(min(SECONDS_BETWEEN_REFRESHES, remaining))
            registry.refresh(self.grid, timeout=timeout, data=self.data)

    def _attempt(
        self, server_round: int, arrays: ArrayRecord, sampler: ParticipantSampler
    ) -> TrainedRound:
        """Send the model to the next participants and collect their replies."""
        wanted = sampler.num_participants
        # Rounding: 1.3 times 10 is slightly above 13.
        drawn = ceil(self.config.over_selection * wanted - 1e-9)
        participants = sampler.next_participants(drawn)
        if not participants:
            return TrainedRound(RoundReplies([], wanted), [])
        messages = self._messages(server_round, arrays, participants)
        nodes = {node.partition_id: node for node in participants}
        sent = next(iter(messages.values())).content.array_records["arrays"]
        rules = reply_rules(self.config, self.strategy, self.parameters)

        def check(partition: int, reply: Message) -> str | None:
            return problem_of(reply, sent, rules) or contradiction(
                self.config, server_round, nodes[partition], reply
            )

        replies = collect_replies(
            self.grid,
            messages,
            list(nodes),
            wanted=wanted,
            check=check,
            timeout=self.config.round_timeout,
        )
        if is_simulation(self.grid):  # a real client may send any error text
            stop_for_dead_workers(server_round, replies.problems)
        return TrainedRound(replies, list(messages.values()))

    def _messages(
        self, server_round: int, arrays: ArrayRecord, participants: Sequence[Node]
    ) -> dict[int, Message]:
        """Build each participant's message; return them by partition, largest first.

        A round lasts until its largest client has replied, so that one starts first.
        """
        visible = cast(Grid, ParticipantGrid(self.grid, participants))
        drafts = self.strategy.configure_train(
            server_round, arrays, ConfigRecord(), visible
        )
        contents = {draft.metadata.dst_node_id: draft.content for draft in drafts}
        return {
            node.partition_id: Message(
                self._content(contents[node.node_id], node.partition_id),
                message_type=MessageType.TRAIN,
                dst_node_id=node.node_id,
            )
            for node in sorted(participants, key=lambda node: -node.num_examples)
        }

    def _content(self, draft: RecordDict, partition: int) -> RecordDict:
        """Return a strategy's content with the complete config of one client.

        It consists of the data set, the strategy's keys and those of the client state.
        """
        state = {} if self.history is None else self.history.message_config(partition)
        config = ConfigRecord({**self.data, **draft.config_records["config"], **state})
        return RecordDict({**draft, "config": config})


def _log_problems(server_round: int, replies: RoundReplies, continues: bool) -> None:
    for problem, partitions in replies.partitions_by_problem().items():
        log(
            WARNING,
            "round %d%s partition%s %s: %s",
            server_round,
            " continues without" if continues else ":",
            "" if len(partitions) == 1 else "s",
            ", ".join(map(str, partitions)),
            problem,
        )


def _too_few(replies: RoundReplies, min_replies: int) -> str:
    return (
        f"{len(replies.valid) or 'none'} of {len(replies.participants)} clients "
        f"returned a valid update, min-replies is {min_replies}"
    )
