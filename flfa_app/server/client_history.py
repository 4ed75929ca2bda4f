"""Whose replies counted in which rounds: what clients with a state are told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flfa_app.client.state import KEEP_SINCE, RUN_NAME, STATE_ROUND
from flfa_app.results.records import RoundRecord

__all__ = ["Participation"]


class Participation:
    """The rounds in which each client's reply counted.

    Parameters
    ----------
    records : Iterable[RoundRecord]
        The rounds so far.
    run_name : str
        Of the run whose states on the nodes' disks are meant; ``""``: there are none.

    Attributes
    ----------
    oldest_checkpoint : int, optional
        The first round a run may go back to; None: there is no checkpoint.
    """

    def __init__(self, records: Iterable[RoundRecord] = (), run_name: str = "") -> None:
        self._rounds: dict[int, list[int]] = {}
        self._run_name = run_name
        self.oldest_checkpoint: int | None = None
        for record in records:
            self.add(record)

    def add(self, record: RoundRecord) -> None:
        """Take note of a round."""
        left_out = {*record.failed, *record.spare}
        for partition in set(record.participants) - left_out:
            self._rounds.setdefault(partition, []).append(record.server_round)

    def orders(self, partition: int) -> dict[str, Any]:
        """Return what a client is told about its state, for the message's config."""
        rounds = self._rounds.get(partition, [])
        orders: dict[str, Any] = {STATE_ROUND: rounds[-1] if rounds else 0}
        if self._run_name:
            oldest = self.oldest_checkpoint
            # A run that goes on from the oldest checkpoint needs the state of then; one
            # that has none needs the last state only.
            until_then = [r for r in rounds if oldest is None or r <= oldest]
            orders[KEEP_SINCE] = until_then[-1] if until_then else 0
            orders[RUN_NAME] = self._run_name
        return orders
