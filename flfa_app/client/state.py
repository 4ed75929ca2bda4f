"""What a client keeps between rounds (MOON, FedDyn, SCAFFOLD), and for how long.

A state belongs to the round after which it was kept. The server tells each client the
last round in which its reply counted (:data:`STATE_ROUND`), and the client takes up the
state of that round, no other: a reply that was lost, late or refused leaves no trace,
and a round that is done again begins where it began before.

A state lives in Flower's ``context.state``, and with ``state-dir`` also on the node's
disk, where a later run finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flfa_app.arrays import to_arrays, to_tensors
from flfa_app.results.checkpoint import round_files, write_file

__all__ = ["KEEP_SINCE", "RUN_NAME", "STATE_ROUND", "ClientState"]

STATE_ROUND = "state-round"
"""Key of a train message: the client's state to take up; 0: none."""
KEEP_SINCE = "state-keep"
"""Key of a train message: the oldest state the server may ask for again."""
RUN_NAME = "run-name"
"""Key of a train message: whose states on disk are meant."""
PREFIX = "trainer-state-"


class ClientState:
    """The states of one client.

    Parameters
    ----------
    records : RecordDict
        The node's ``context.state``.
    orders : Mapping[str, Any]
        The message's config.
    state_dir : str
        ``""``: nothing is kept on disk.
    partition_id : int
        Whose states.
    """

    def __init__(
        self,
        records: RecordDict,
        orders: Mapping[str, Any],
        state_dir: str,
        partition_id: int,
    ) -> None:
        self._records = records
        self._round = int(orders.get(STATE_ROUND, 0))
        self._keep_since = int(orders.get(KEEP_SINCE, self._round))
        self._folder: Path | None = None
        if state_dir and RUN_NAME in orders:  # methods without state have no use for it
            parent = Path(state_dir).expanduser() / str(orders[RUN_NAME])
            self._folder = parent / f"partition-{partition_id}"

    def load(self) -> dict[str, Tensor]:
        """Return the state the server has named; empty if there is none."""
        if self._round == 0:
            return {}
        record = self._records.array_records.get(f"{PREFIX}{self._round}")
        if record is not None:
            return to_tensors(record)
        if self._folder is not None:
            return self._read(self._file(self._round))
        log(WARNING, "the state of round %d is lost; going on without", self._round)
        return {}

    def save(self, server_round: int, state: Mapping[str, Tensor]) -> None:
        """Keep the state of this round beside the one that was taken up."""
        if not state:
            return
        self._records[f"{PREFIX}{server_round}"] = to_arrays(state)
        for name in [*self._records.array_records]:
            number = name.removeprefix(PREFIX)
            if number.isdigit() and int(number) not in (self._round, server_round):
                del self._records[name]
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
        write_file(self._file(server_round), save(tensors))
        for kept, file in round_files(self._folder, ".safetensors").items():
            # Those after the present round are of a run that was stopped later.
            if not self._keep_since <= kept <= server_round:
                file.unlink()

    def _file(self, server_round: int) -> Path:
        assert self._folder is not None
        return self._folder / f"round-{server_round:06d}.safetensors"

    def _read(self, file: Path) -> dict[str, Tensor]:
        try:
            return load(file.read_bytes())
        except (OSError, SafetensorError) as problem:
            log(WARNING, "%s is lost (%s); going on without", file, problem)
            return {}
