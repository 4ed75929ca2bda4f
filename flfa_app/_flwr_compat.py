"""The parts of Flower this app uses that are not Flower's public API.

Nothing else in ``flfa_app`` may touch them (``tests/contract/test_imports.py``). Each
use has a guard and a fallback, and ``tests/contract/test_flwr_canaries.py`` fails when
an installed Flower no longer has what is expected here. Tested: flwr 1.41.
"""

from __future__ import annotations

import tomllib
from collections import deque
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

CONNECTION_ERRORS: tuple[type[Exception], ...]
"""What Flower's Grid raises when the SuperLink cannot be reached."""
try:
    from httpx import HTTPError
except ImportError:  # a Flower with another transport
    CONNECTION_ERRORS = (OSError,)
else:
    CONNECTION_ERRORS = (HTTPError, OSError)

try:
    from flwr.common.constant import ErrorCode

    _MESSAGE_UNAVAILABLE = int(ErrorCode.MESSAGE_UNAVAILABLE)
except (ImportError, AttributeError):
    _MESSAGE_UNAVAILABLE = 3


def is_expired(error: Error) -> bool:
    """Whether the SuperLink reports that a message expired without a reply."""
    return error.code == _MESSAGE_UNAVAILABLE


def is_simulation(grid: Grid) -> bool:
    """Whether the nodes are simulated by the process that runs the ServerApp."""
    # By name: importing the class takes most of a second, also with real nodes.
    return type(grid).__name__ == "InMemoryGrid"


def dispatch_in_sending_order(grid: Grid) -> bool:
    """Let a simulation hand out its messages in the order in which they were sent.

    The state then answers every request of the engine with the next message, whichever
    node the request names: the engine goes by the message's own destination.

    It must be called before anything is sent. Returns False if the grid's state is not
    the expected one; it is then left unchanged.
    """
    state: Any = getattr(grid, "state", None)
    store = getattr(state, "store_message_ins", None)
    get = getattr(state, "get_message_ins", None)
    if type(state).__name__ != "InMemoryLinkState" or store is None or get is None:
        return False
    destinations: deque[int] = deque()

    def store_message_ins(message: Message, *args: Any, **kwargs: Any) -> str | None:
        message_id: str | None = store(message, *args, **kwargs)
        if message_id:
            destinations.append(message.metadata.dst_node_id)
        return message_id

    def get_message_ins(node_id: int, *args: Any, **kwargs: Any) -> list[Message]:
        return get(destinations.popleft(), *args, **kwargs) if destinations else []

    # Only this object is changed. It ends with the run.
    vars(state).update(
        store_message_ins=store_message_ins, get_message_ins=get_message_ins
    )
    return True


def parse_config_overrides(text: str) -> dict[str, Any]:
    """Parse an argument of ``--run-config`` as ``flwr run`` does.

    ``text`` is the path of a TOML file, or ``key=value`` pairs. Raises
    :class:`ValueError` if it is neither, :class:`OSError` if the file cannot be read.
    """
    try:
        from flwr.common.config import parse_config_args
    except ImportError:
        if not text.endswith(".toml"):
            raise ValueError(
                "this version of Flower has no parser for key=value; use a .toml file"
            ) from None
        return tomllib.loads(Path(text).expanduser().read_text())
    try:
        return parse_config_args([text])
    except Exception as error:
        # Flower raises the exceptions of its command line (click) and of its parser.
        if isinstance(error, OSError):
            raise
        raise ValueError(str(error)) from error
