"""Messages and the replies to them, each on its own: a bad one harms no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from httpx import HTTPError

from flfa_app.errors import summarize_error
from flfa_app.server.simulation_engine import is_simulation

__all__ = ["NO_ANSWER", "Reply", "replies_to"]

# Between two looks for replies: a part of the time waited so far, within these bounds.
# Real nodes need seconds for any answer, and each look is a request for each of them.
SHORTEST_WAIT, SHORTEST_WAIT_OF_REAL_NODES, LONGEST_WAIT = 0.05, 0.25, 3.0
PART_OF_TIME_WAITED = 0.01
NO_ANSWER = "no answer within round-timeout"

Reply: TypeAlias = Message | str
"""A reply, or why there is none."""


def replies_to(
    grid: Grid,
    messages: Sequence[Message],
    *,
    timeout: float,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Reply]]:
    """Send messages; yield the place of each and its reply, as they arrive.

    Those of whom nothing is heard in time are not mentioned.

    Parameters
    ----------
    grid : Grid
        The federation.
    messages : Sequence[Message]
        They are sent in this order, and expire with the timeout.
    timeout : float
        In seconds.
    enough : Callable[[], bool], optional
        Whether nobody need be waited for any more.
    """
    for message in messages:
        message.metadata.ttl = timeout
    sent = {x for x in grid.push_messages(messages) if x is not None}
    waiting: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message.metadata.message_id in sent:
            waiting[message.metadata.message_id] = place
        else:
            yield place, "Flower could not send the message"
    simulated = is_simulation(grid)
    shortest = SHORTEST_WAIT if simulated else SHORTEST_WAIT_OF_REAL_NODES
    started = time.monotonic()
    while waiting:
        for message_id, reply in _arrived(grid, list(waiting), simulated):
            if message_id in waiting:
                yield waiting.pop(message_id), reply
        waited = time.monotonic() - started
        if not waiting or enough() or waited >= timeout:
            return
        pause = min(max(shortest, PART_OF_TIME_WAITED * waited), LONGEST_WAIT)
        time.sleep(min(pause, timeout - waited))


def _arrived(
    grid: Grid, message_ids: list[str], simulated: bool
) -> Iterator[tuple[str, Reply]]:
    """Yield the messages that have been answered, with their replies.

    From real nodes each is fetched on its own: what is fetched together is gone
    together if Flower cannot read one of them.
    """
    groups = [message_ids] if simulated else [[one] for one in message_ids]
    for group in groups:
        try:
            replies = list(grid.pull_messages(group))
        except (HTTPError, OSError):
            raise  # not a word of the client's
        except Exception as problem:
            if simulated:
                raise
            # Which errors there are is up to whoever wrote the bytes.
            yield group[0], f"Flower cannot read its answer ({type(problem).__name__})"
            continue
        for reply in replies:
            # Not by its sender: for a node that is gone the SuperLink answers.
            yield reply.metadata.reply_to_message_id, _readable(reply)


def _readable(reply: Message) -> Reply:
    if not reply.has_error():
        return reply
    expired = reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    return NO_ANSWER if expired else summarize_error(str(reply.error.reason))
