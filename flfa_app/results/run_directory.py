"""The output directory of a run: what it was, how it went, what came out."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from flfa_app.config import RunConfig
from flfa_app.results.checkpoint import write_file
from flfa_app.results.metrics import METRICS, FinishedRun
from flfa_app.results.provenance import SOURCE, git_commit
from flfa_app.results.records import RoundRecord, replace_non_finite

__all__ = ["RunDirectory"]

PACKAGES = ("flwr", "flwr-datasets", "torch", "torchvision", "ray", "numpy", "medmnist")


class RunDirectory:
    """``config.json``, ``metrics.jsonl``, ``summary.json``, model and pictures."""

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self.model = model
        self.records: list[RoundRecord] = []
        self.lost_models: set[int] = set()
        """Rounds before a resumption of whose models there is no good checkpoint."""

    @classmethod
    def create(cls, config: RunConfig, run_id: int) -> RunDirectory:
        """Make the directory of a new run."""
        arm = "bp" if config.flfa == "none" else config.flfa
        started = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{started}-{config.dataset}-{config.model}-{config.algorithm}-{arm}"
        parent = Path(config.output_dir or "runs").expanduser().resolve()
        run = cls(parent / f"{name}-s{config.seed}-{run_id}", config.model)
        try:
            run.path.mkdir(parents=True)
        except OSError as problem:
            raise RuntimeError(
                f"output-dir: cannot create {run.path} ({problem.strerror}); set "
                "output-dir to a folder that can be written"
            ) from problem
        return run

    @property
    def short_name(self) -> str:
        """When it began, and what tells it from others: always as long."""
        return (
            f"{self.path.name[:15]}-{sha256(self.path.name.encode()).hexdigest()[:8]}"
        )

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep others from going on with the same run at the same time."""
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeError(
                    f"{self.path} is in use by another run; wait for it or stop it"
                ) from None
            yield

    def write_config(
        self, config: RunConfig, run_id: int, more: Mapping[str, Any]
    ) -> None:
        """Write the resolved config, and what is needed to do it again."""
        versions = {name: version(name) for name in PACKAGES}
        about = {
            "run-config": config.as_keys(),
            **more,
            # Of Flower's; more than one if the run was resumed.
            "run-ids": [*self.config().get("run-ids", ()), str(run_id)],
            "versions": {"python": platform.python_version(), **versions},
            "git-commit": git_commit(Path(os.environ.get(SOURCE, "."))),
        }
        self._write_json("config.json", about)

    def config(self) -> dict[str, Any]:
        """Return what :meth:`write_config` has written before, if it has."""
        file = self.path / "config.json"
        read: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return read

    def go_back_to(self, records: Iterable[RoundRecord]) -> None:
        """Leave the rounds of a checkpoint in ``metrics.jsonl`` and forget the rest."""
        for made_at_the_end in ("summary.json", "model.safetensors"):
            (self.path / made_at_the_end).unlink(missing_ok=True)
        self.records = [*records]
        lines = "".join(record.to_line() for record in self.records)
        write_file(self.path / "metrics.jsonl", lines.encode())

    def add_round(self, record: RoundRecord) -> None:
        """Append a line to ``metrics.jsonl``; it is on disk when this returns.

        Where it cannot be, on a full disk, no part of it is.
        """
        path = self.path / "metrics.jsonl"
        length = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(record.to_line())
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # After the file is closed, which tries once more to write the rest.
            if path.exists():
                os.truncate(path, length)
            raise
        self.records.append(record)

    @property
    def best_round(self) -> int:
        """The first round with the highest accuracy; 0 before the first evaluation.

        Of those whose models are there: it is the round of ``best_model.safetensors``.
        """
        accuracies = {
            record.server_round: record.evaluation.accuracy
            for record in self.records
            if record.evaluation and record.server_round not in self.lost_models
        }
        return max(accuracies, key=accuracies.__getitem__, default=0)

    def save_model(
        self, state_dict: Mapping[str, Tensor], name: str = "model.safetensors"
    ) -> None:
        """Write the global model."""
        tensors = {name: tensor.contiguous() for name, tensor in state_dict.items()}
        write_file(self.path / name, save(tensors))

    def write_summary(
        self, *, no_op_rounds: int | None, stopped_early: str | None, seconds: float
    ) -> dict[str, Any]:
        """Write ``summary.json``, which marks the run as complete; return its content.

        The parameters are those of :class:`~flfa_app.results.metrics.FinishedRun`.
        """
        run = FinishedRun(
            model=self.model,
            records=self.records,
            best_round=self.best_round,
            no_op_rounds=no_op_rounds,
            stopped_early=stopped_early,
            seconds=seconds,
        )
        summary = {key: spec.of_run(run) for key, spec in METRICS.items()}
        self._write_json("summary.json", summary)
        return summary

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(replace_non_finite(content), indent=2, allow_nan=False)
        write_file(self.path / name, f"{text}\n".encode())
