"""Checkpoints of a run: complete and proven by a checksum, or not there.

A checkpoint is two files, ``round-000012.safetensors`` with all arrays and
``round-000012.json`` with everything else and the checksum of both. The second is
written last. Nothing in them is code (no pickle).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flfa_app.results.records import RoundRecord

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints", "round_files", "write_file"]

Arrays = dict[str, npt.NDArray[Any]]
FORMAT = 1
MODEL, STRATEGY = "model/", "strategy/"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used, or must not be written."""


class Checkpoint(NamedTuple):
    """The state of a run after a round.

    Parameters
    ----------
    server_round : int
        The last round that is in it.
    model : dict[str, NDArray]
        The global arrays.
    strategy_arrays, strategy_values : dict
        What the strategy carries from round to round.
    records : Sequence[RoundRecord]
        The rounds so far.
    about : dict[str, Any]
        The run's config and what it needs to be the same run.
    """

    server_round: int
    model: Arrays
    strategy_arrays: Arrays
    strategy_values: dict[str, Any]
    records: Sequence[RoundRecord]
    about: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder.

    Parameters
    ----------
    folder : Path
        Made when the first one is written.
    keep : int
        How many of the last ones to keep, besides the best.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder = folder
        self.keep = keep

    @classmethod
    def of(cls, run: Path, keep: int = 1) -> Checkpoints:
        """Return the checkpoints of a run's directory."""
        return cls(run / "checkpoints", keep)

    def rounds(self) -> list[int]:
        """Return the rounds of which there is a checkpoint, good or damaged."""
        return sorted(round_files(self.folder, ".json"))

    def path(self, server_round: int) -> Path:
        """Return the file that makes a checkpoint complete."""
        return self.folder / f"round-{server_round:06d}.json"

    def write(self, checkpoint: Checkpoint, best_round: int) -> Path:
        """Write a checkpoint; delete those that are no longer kept.

        Raises
        ------
        CheckpointError
            If a value is not finite: such a model is of no use to anyone.
        """
        arrays = {
            **{MODEL + name: array for name, array in checkpoint.model.items()},
            **{STRATEGY + k: array for k, array in checkpoint.strategy_arrays.items()},
        }
        if broken := not_finite(arrays):
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
            "arrays": [*arrays],  # in this order, which the other file does not keep
            "arrays-sha256": hashlib.sha256(data).hexdigest(),
            "strategy": checkpoint.strategy_values,
            "rows": [record.to_json() for record in checkpoint.records],
            **checkpoint.about,
        }
        text = json.dumps(
            {"content": content, "sha256": _checksum(content)}, allow_nan=False
        )
        write_file(path.with_suffix(".safetensors"), data)
        write_file(path, text.encode())
        self._delete_old(best_round)
        return path

    def read(self, server_round: int) -> Checkpoint:
        """Read a checkpoint; raise :class:`CheckpointError` if it is damaged."""
        path = self.path(server_round)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            content = stored["content"]
            if stored["sha256"] != _checksum(content):
                raise CheckpointError(f"{path} is not what was written (checksum)")
            if content["format"] != FORMAT:
                raise CheckpointError(
                    f"{path} has the format {content['format']}; this version reads "
                    f"{FORMAT}"
                )
            data = path.with_suffix(".safetensors").read_bytes()
            if content["arrays-sha256"] != hashlib.sha256(data).hexdigest():
                raise CheckpointError(
                    f"{path.with_suffix('.safetensors')} is not what was written "
                    "(checksum)"
                )
            loaded = load(data)
            arrays = {name: loaded[name] for name in content["arrays"]}
            records = [RoundRecord.from_json(row) for row in content["rows"]]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
            raise CheckpointError(f"{path} cannot be read: {problem}") from problem
        known = ("format", "round", "arrays", "arrays-sha256", "strategy", "rows")
        return Checkpoint(
            content["round"],
            _part(arrays, MODEL),
            _part(arrays, STRATEGY),
            content["strategy"],
            records,
            {key: value for key, value in content.items() if key not in known},
        )

    def newest(self) -> Checkpoint:
        """Return the newest checkpoint that is whole; warn about those that are not.

        Raises
        ------
        CheckpointError
            If there is none.
        """
        problems = []
        for server_round in reversed(self.rounds()):
            try:
                return self.read(server_round)
            except CheckpointError as problem:
                log(WARNING, "%s; the one before it is used", problem)
                problems.append(str(problem))
        raise CheckpointError(
            "; ".join(
                [f"there is no checkpoint to go on from in {self.folder}", *problems]
            )
        )

    def forget_after(self, server_round: int) -> None:
        """Delete what comes after a round: the run will do it again."""
        for later in [r for r in self.rounds() if r > server_round]:
            self._delete(later)

    def _delete_old(self, best_round: int) -> None:
        rounds = self.rounds()
        for old in set(rounds[: -self.keep]) - {best_round}:
            self._delete(old)

    def _delete(self, server_round: int) -> None:
        path = self.path(server_round)
        path.unlink()  # first: what remains of it is no checkpoint
        path.with_suffix(".safetensors").unlink(missing_ok=True)


def not_finite(arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Name the arrays with nan or infinity."""
    return [
        name
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    ]


def round_files(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files ``round-000012<suffix>`` by round; those of others are left."""
    name = re.compile(rf"round-([0-9]{{6}}|[1-9][0-9]{{6,}}){re.escape(suffix)}")
    found = ((name.fullmatch(path.name), path) for path in folder.glob("round-*"))
    return {int(match[1]): path for match, path in found if match}


def write_file(path: Path, content: bytes) -> None:
    """Write a file that is either complete and on the disk, or not there."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # a full disk needs the room
        raise
    # The name itself is on the disk when its folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _part(arrays: Mapping[str, npt.NDArray[Any]], start: str) -> Arrays:
    return {
        name.removeprefix(start): array
        for name, array in arrays.items()
        if name.startswith(start)
    }
