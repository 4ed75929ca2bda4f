"""Checkpoints of a run, complete and verified by checksums.

A checkpoint is two files: ``round-000012.safetensors`` with all arrays, and
``round-000012.json`` with everything else and the checksums of both. The second file
is written last and makes the checkpoint complete. Neither can contain code (no pickle).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flfa_app.files import list_round_files, write_atomically
from flfa_app.results.records import RoundRecord

Arrays = dict[str, npt.NDArray[Any]]
FORMAT = 1
# Prefixes of array names in the safetensors file.
MODEL, STRATEGY = "model/", "strategy/"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used, or must not be written."""


class Checkpoint(NamedTuple):
    """The state of a run after a round."""

    server_round: int
    model: Arrays
    strategy_arrays: Arrays
    strategy_values: dict[str, Any]
    """With ``strategy_arrays``, the state that a strategy carries between rounds."""
    records: Sequence[RoundRecord]
    metadata: dict[str, Any]
    """The run config, and the nodes and data that a resumed run must have again."""


class Checkpoints:
    """The checkpoints of a run: its newest ``keep``, and that of the best round."""

    def __init__(self, run: Path, keep: int = 1) -> None:
        self.folder = run / "checkpoints"
        self.keep = keep

    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, intact or damaged."""
        return sorted(list_round_files(self.folder, ".json"))

    def path(self, server_round: int) -> Path:
        """Return the JSON file of a checkpoint, which makes it complete."""
        return self.folder / f"round-{server_round:06d}.json"

    def write(self, checkpoint: Checkpoint, best_round: int) -> Path:
        """Write a checkpoint and delete the ones that need not be kept any longer.

        Raises :class:`CheckpointError` if a value is not finite: no run could be
        resumed from such a model.
        """
        arrays = {
            **{MODEL + name: array for name, array in checkpoint.model.items()},
            **{STRATEGY + k: array for k, array in checkpoint.strategy_arrays.items()},
        }
        if broken := non_finite_arrays(arrays):
            raise CheckpointError(
                f"round {checkpoint.server_round} is not saved: {', '.join(broken)} "
                "is not finite"
            )
        self.folder.mkdir(exist_ok=True)
        path = self.path(checkpoint.server_round)
        data = save({name: np.asarray(a, order="C") for name, a in arrays.items()})
        content = {
            "format": FORMAT,
            "round": checkpoint.server_round,
            "arrays": [*arrays],  # their order, which safetensors does not preserve
            "arrays-sha256": hashlib.sha256(data).hexdigest(),
            "strategy": checkpoint.strategy_values,
            "rows": [record.to_json() for record in checkpoint.records],
            **checkpoint.metadata,
        }
        stored = {"content": content, "sha256": _checksum(content)}
        write_atomically(path.with_suffix(".safetensors"), data)
        write_atomically(path, json.dumps(stored, allow_nan=False).encode())
        for old in set(self.rounds()[: -self.keep]) - {best_round}:
            self._delete(old)
        return path

    def read(self, server_round: int) -> Checkpoint:
        """Read a checkpoint; raise :class:`CheckpointError` if it is damaged."""
        path = self.path(server_round)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            content = stored["content"]
            _check_checksum(path, _checksum(content), stored["sha256"])
            if (version := content.pop("format")) != FORMAT:
                raise CheckpointError(
                    f"{path} has the format {version}; this version reads {FORMAT}"
                )
            arrays_path = path.with_suffix(".safetensors")
            data = arrays_path.read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            _check_checksum(arrays_path, sha256, content.pop("arrays-sha256"))
            loaded = load(data)
            arrays = {name: loaded[name] for name in content.pop("arrays")}
            model, strategy_arrays = (
                {k.removeprefix(p): a for k, a in arrays.items() if k.startswith(p)}
                for p in (MODEL, STRATEGY)
            )
            return Checkpoint(
                content.pop("round"),
                model,
                strategy_arrays,
                content.pop("strategy"),
                [RoundRecord.from_json(row) for row in content.pop("rows")],
                metadata=content,
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
            raise CheckpointError(f"{path} cannot be read: {problem}") from problem

    def newest(self) -> Checkpoint:
        """Return the newest intact checkpoint, or raise :class:`CheckpointError`."""
        problems = []
        for server_round in reversed(self.rounds()):
            try:
                return self.read(server_round)
            except CheckpointError as problem:
                log(WARNING, "%s; the checkpoint before it is used", problem)
                problems.append(str(problem))
        nothing = f"there is no checkpoint to resume from in {self.folder}"
        raise CheckpointError("; ".join([nothing, *problems]))

    def delete_after(self, server_round: int) -> None:
        """Delete the checkpoints of later rounds, which will be computed again."""
        for later in [r for r in self.rounds() if r > server_round]:
            self._delete(later)

    def _delete(self, server_round: int) -> None:
        path = self.path(server_round)
        path.unlink()  # first: without this file the rest is no checkpoint
        path.with_suffix(".safetensors").unlink(missing_ok=True)


def non_finite_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Return the names of the arrays that contain nan or infinity."""
    return [
        name
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    ]


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_checksum(path: Path, checksum: str, expected: str) -> None:
    if checksum != expected:
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
