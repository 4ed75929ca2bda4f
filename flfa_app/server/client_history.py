"""Whose replies counted in which rounds: what clients with a state are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flfa_app.client.state import KEEP_SINCE, RUN_NAME, STATE_ROUND

__all__ = ["Participation"]


class Participation:
    """The rounds in which each client's reply counted.

    Parameters
    ----------
    rows : Iterable[Mapping[str, Any]]
        The rounds so far, as in ``metrics.jsonl``.
    run_name : str
        Of the run whose states on the nodes' disks are meant; ``""``: there are none.

    Attributes
    ----------
    oldest_checkpoint : int, optional
        The first round a run may go back to; None: there is no checkpoint.
    """

    def __init__(
        self, rows: Iterable[Mapping[str, Any]] = (), run_name: str = ""
    ) -> None:
        self._rounds: dict[int, list[int]] = {}
        self._run_name = run_name
        self.oldest_checkpoint: int | None = None
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take note of a round."""
        left_out = {*row["failed"], *row["spare"]}
        for partition in set(row["participants"]) - left_out:
            self._rounds.setdefault(partition, []).append(row["round"])

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
