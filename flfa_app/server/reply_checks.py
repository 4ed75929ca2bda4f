"""What the reply of a client of this app must be like."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, inf, isclose
from typing import Any

from flwr.app import Message

from clients.feedback.diagnostics import ANGLE, ERROR
from clients.methods.scaffold import effective_steps
from flfa_app.config import RunConfig
from flfa_app.server.nodes import Member
from strategies import LayerSelection, ReplyRules
from strategies.methods.scaffold import STEP_LENGTH

__all__ = ["contradiction", "reply_rules"]

# What every client of this app reports; a method may need more.
METRICS = ("num-examples", "partition-id", "train-loss", "steps")


def reply_rules(
    config: RunConfig, strategy: LayerSelection, parameters: Collection[str]
) -> ReplyRules:
    """Return what a reply to the next messages must be like."""
    keys = [*METRICS, *getattr(strategy, "reply_metrics", ())]
    if config.diagnostics:
        measures = (ERROR,) if config.feedback == "dfa" else (ANGLE, ERROR)
        keys += [f"{m}/{layer}" for m in measures for layer in strategy.selected]
    return ReplyRules(
        keys=keys,
        positive=getattr(strategy, "reply_metrics", ()),
        max_weight=config.max_examples or inf,
        max_norm=config.max_update_norm or inf,
        parameters=frozenset(parameters),
    )


def contradiction(
    config: RunConfig, server_round: int, member: Member, reply: Message
) -> str | None:
    """Say what a client cannot be right about, given what is known of it.

    Parameters
    ----------
    config : RunConfig
        The run.
    server_round : int
        The round the reply is of.
    member : Member
        What the client has said of itself at the start.
    reply : Message
        A reply that :func:`reply_rules` has nothing against.
    """
    metrics: dict[str, Any] = dict(reply.content.metric_records["metrics"])
    images = metrics["num-examples"]
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
