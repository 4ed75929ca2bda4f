"""What a client's reply must look like to be aggregated."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, inf, isclose
from typing import Any

from flwr.app import Message

from clients.feedback.diagnostics import ANGLE, ERROR
from clients.methods.scaffold import effective_steps
from flfa_app.config import RunConfig
from flfa_app.message_keys import NUM_EXAMPLES, PARTITION_ID
from flfa_app.server.nodes import Node
from strategies import LayerSelection, ReplyRules
from strategies.methods.scaffold import STEP_LENGTH

__all__ = ["contradiction", "reply_rules"]

# The metrics of every reply; a method may add others.
METRICS = (NUM_EXAMPLES, PARTITION_ID, "train-loss", "steps")


def reply_rules(
    config: RunConfig, strategy: LayerSelection, parameters: Collection[str]
) -> ReplyRules:
    """Return the rules for the replies to the next train messages."""
    method_metrics = getattr(strategy, "reply_metrics", ())
    keys = [*METRICS, *method_metrics]
    if config.diagnostics:
        measures = (ERROR,) if config.feedback == "dfa" else (ANGLE, ERROR)
        keys += [f"{m}/{layer}" for m in measures for layer in strategy.selected]
    return ReplyRules(
        keys=keys,
        positive=method_metrics,
        max_weight=config.max_examples or inf,
        max_norm=config.max_update_norm or inf,
        parameters=frozenset(parameters),
    )


def contradiction(
    config: RunConfig, server_round: int, node: Node, reply: Message
) -> str | None:
    """Return which metric of a reply contradicts what the server knows, or None.

    Parameters
    ----------
    config : RunConfig
        The config of the run.
    server_round : int
        The round of the reply.
    node : Node
        The node as it described itself at the start of the run.
    reply : Message
        A reply that passes :func:`reply_rules`.
    """
    metrics: dict[str, Any] = dict(reply.content.metric_records["metrics"])
    num_examples = metrics[NUM_EXAMPLES]
    if metrics[PARTITION_ID] != node.partition_id:
        return f"it says it is from partition {metrics[PARTITION_ID]}"
    if num_examples > node.num_examples:
        return (
            f"its '{NUM_EXAMPLES}' is {num_examples}; at the start the client said "
            f"{node.num_examples}"
        )
    steps = config.local_epochs * ceil(num_examples / config.batch_size)
    expected = {"steps": float(steps)}
    if STEP_LENGTH in metrics:
        effective = effective_steps(steps, config.momentum)
        expected[STEP_LENGTH] = config.learning_rate_in(server_round) * effective
    for name, value in expected.items():
        if not isclose(metrics[name], value, rel_tol=1e-9):
            return f"its {name!r} is {metrics[name]!r}; it must be {value!r}"
    return None
