"""The federation as a strategy may see it in one round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flfa_app.server.nodes import Member

__all__ = ["Participants"]


class Participants(Grid):
    """A grid as a strategy may see it in one round: only the participants are there.

    Flower's strategies sample by node id, which is random; here they sample all.
    """

    def __init__(self, grid: Grid, members: Sequence[Member]) -> None:
        self._grid = grid
        self._members = members

    def get_node_ids(self) -> Iterable[int]:
        """Get node IDs."""
        return [member.node_id for member in self._members]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Get nodes."""
        ids = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in ids]

    @property
    def run(self) -> Run:
        """Run information."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run this ``Grid`` object operates in."""
        self._grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a new message with specified parameters."""
        return self._grid.create_message(
            content, message_type, dst_node_id, group_id, ttl
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages to specified node IDs."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages based on message IDs."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages to specified node IDs and pull the reply messages."""
        return self._grid.send_and_receive(messages, timeout=timeout)
