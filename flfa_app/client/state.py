"""The state a client keeps between rounds (MOON, FedDyn, SCAFFOLD).

A state belongs to the round after which it was saved. The server tells each client the
last round in which its reply was aggregated, and the client restores the state of that
round. A reply that was lost, late or rejected therefore has no effect on later rounds,
and a repeated round starts from the same state as before.

States are in Flower's ``context.state``. With ``state-dir`` they are also on the node's
disk, where a resumed run finds them.
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
from flfa_app.files import list_round_files, write_atomically
from flfa_app.message_keys import KEEP_SINCE, RUN_NAME, STATE_ROUND

__all__ = ["ClientState"]

PREFIX = "trainer-state-"


class ClientState:
    """The saved states of one client.

    Parameters
    ----------
    records : RecordDict
        The node's ``context.state``.
    message_config : Mapping[str, Any]
        The config of the train message.
    state_dir : str
        The folder for states on disk; ``""``: none are written.
    partition_id : int
        The client's partition.
    """

    def __init__(
        self,
        records: RecordDict,
        message_config: Mapping[str, Any],
        state_dir: str,
        partition_id: int,
    ) -> None:
        self._records = records
        self._round = int(message_config.get(STATE_ROUND, 0))
        self._keep_since = int(message_config.get(KEEP_SINCE, self._round))
        self._folder: Path | None = None
        # The server names the run only if the method's clients have a state.
        if state_dir and RUN_NAME in message_config:
            parent = Path(state_dir).expanduser() / str(message_config[RUN_NAME])
            self._folder = parent / f"partition-{partition_id}"

    def load(self) -> dict[str, Tensor]:
        """Return the state of the round named by the server; empty if there is none."""
        if self._round == 0:
            return {}
        record = self._records.array_records.get(f"{PREFIX}{self._round}")
        if record is not None:
            return to_tensors(record)
        if self._folder is not None:
            return _read(self._file(self._folder, self._round))
        log(WARNING, "the state of round %d is lost; continuing without", self._round)
        return {}

    def save(self, server_round: int, state: Mapping[str, Tensor]) -> None:
        """Save the state after this round; delete the states no longer needed.

        In memory only this state and the one of the named round are kept: the reply may
        still be lost.
        """
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
        write_atomically(self._file(self._folder, server_round), save(tensors))
        for saved_round, file in list_round_files(self._folder, ".safetensors").items():
            # Later rounds are those of a run that was resumed from an earlier one.
            if not self._keep_since <= saved_round <= server_round:
                file.unlink()

    @staticmethod
    def _file(folder: Path, server_round: int) -> Path:
        return folder / f"round-{server_round:06d}.safetensors"


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load(file.read_bytes())
    except (OSError, SafetensorError) as error:
        log(WARNING, "%s is lost (%s); continuing without", file, error)
        return {}
