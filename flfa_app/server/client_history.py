"""In which rounds each client's reply was aggregated.

Clients with a state (MOON, FedDyn, SCAFFOLD) must restore the state of the last round
in which their reply was aggregated. The train messages name that round.
"""

from __future__ import annotations

from collections.abc import Iterable
from logging import INFO, WARNING
from typing import Any

from flwr.common.logger import log

from flfa_app.config import RunConfig
from flfa_app.message_keys import KEEP_SINCE, RUN_NAME, STATE_ROUND
from flfa_app.methods import ALGORITHMS
from flfa_app.results.records import RoundRecord
from flfa_app.results.run_directory import RunDirectory

__all__ = ["ClientHistory"]


class ClientHistory:
    """The rounds in which each client's reply was aggregated.

    Parameters
    ----------
    records : Iterable[RoundRecord]
        The rounds so far.
    run_name : str
        The run whose client states are on the nodes' disks; ``""``: there are none.

    Attributes
    ----------
    oldest_checkpoint : int, optional
        The first round from which the run may be resumed; None: no checkpoint exists.
    """

    def __init__(self, records: Iterable[RoundRecord] = (), run_name: str = "") -> None:
        self._rounds: dict[int, list[int]] = {}
        self._run_name = run_name
        self.oldest_checkpoint: int | None = None
        for record in records:
            self.add_round(record)

    @classmethod
    def of_run(cls, config: RunConfig, run: RunDirectory) -> ClientHistory | None:
        """Return the history of a new or resumed run; None if clients have no state."""
        if not ALGORITHMS[config.algorithm].keeps_client_state:
            return None
        if config.state_dir:
            if run.records:
                log(INFO, "Clients restore their state from %s", config.state_dir)
            return cls(run.records, run.short_name)
        if run.records:
            log(
                WARNING,
                "state-dir is not set: the clients resume without the state they had "
                "for %s",
                config.algorithm,
            )
        return cls()

    def add_round(self, record: RoundRecord) -> None:
        """Add a finished round."""
        not_aggregated = {*record.failed, *record.spare}
        for partition in set(record.participants) - not_aggregated:
            self._rounds.setdefault(partition, []).append(record.server_round)

    def message_config(self, partition: int) -> dict[str, Any]:
        """Return the keys of a client's train message that are about its state."""
        rounds = self._rounds.get(partition, [])
        keys: dict[str, Any] = {STATE_ROUND: rounds[-1] if rounds else 0}
        if self._run_name:
            oldest = self.oldest_checkpoint
            # A run resumed from the oldest checkpoint needs the state of that round.
            # Without a checkpoint only the last state is needed.
            resumable = [r for r in rounds if oldest is None or r <= oldest]
            keys[KEEP_SINCE] = resumable[-1] if resumable else 0
            keys[RUN_NAME] = self._run_name
        return keys
