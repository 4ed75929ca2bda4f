"""The directory of a run: its config, rounds, summary, models and plots."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from flfa_app.config import RunConfig
from flfa_app.files import (
    append_line,
    exclusive_lock,
    write_atomically,
    write_json,
)
from flfa_app.results.metrics import METRICS, FinishedRun
from flfa_app.results.provenance import SOURCE, git_commit, package_versions
from flfa_app.results.records import RoundRecord
from flfa_app.results.round_metrics import first_cosines

__all__ = ["RunDirectory", "output_folder"]


class RunDirectory:
    """The files of a run, and its rounds so far.

    Attributes
    ----------
    path : Path
        The directory.
    model : str
        The run config's key ``model``.
    records : list[RoundRecord]
        The rounds in ``metrics.jsonl``.
    lost_models : set[int]
        Rounds before a resumption whose models have no intact checkpoint.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self.model = model
        self.records: list[RoundRecord] = []
        self.lost_models: set[int] = set()

    @classmethod
    def create(cls, config: RunConfig, run_id: int) -> RunDirectory:
        """Create the directory of a new run."""
        arm = "bp" if config.flfa == "none" else config.flfa
        started = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{started}-{config.dataset}-{config.model}-{config.algorithm}-{arm}"
        path = output_folder(config) / f"{name}-s{config.seed}-{run_id}"
        try:
            path.mkdir(parents=True)
        except OSError as problem:
            raise RuntimeError(
                f"output-dir: cannot create {path} ({problem.strerror}); set "
                "output-dir to a folder that can be written"
            ) from problem
        return cls(path, config.model)

    @property
    def short_name(self) -> str:
        """Start time and a hash of the directory's name, always 24 characters."""
        name = self.path.name
        return f"{name[:15]}-{sha256(name.encode()).hexdigest()[:8]}"

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from resuming the same run at the same time."""
        message = f"{self.path} is in use by another run; wait for it or stop it"
        return exclusive_lock(self.path, message)

    def write_config(
        self, config: RunConfig, run_id: int, metadata: Mapping[str, Any]
    ) -> None:
        """Write ``config.json``: everything that is needed to repeat the run.

        Parameters
        ----------
        config : RunConfig
            The run config with all defaults.
        run_id : int
            Flower's id. A resumed run has several.
        metadata : Mapping[str, Any]
            Facts about nodes, data and model.
        """
        content = {
            "run-config": config.as_keys(),
            **metadata,
            "run-ids": [*self._read_config().get("run-ids", ()), str(run_id)],
            "versions": package_versions(),
            "git-commit": git_commit(Path(os.environ.get(SOURCE, "."))),
        }
        write_json(self.path / "config.json", content)

    def _read_config(self) -> dict[str, Any]:
        file = self.path / "config.json"
        content: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return content

    def restore(self, records: Iterable[RoundRecord]) -> None:
        """Go back to the rounds of a checkpoint; delete the files of a finished run."""
        for name in ("summary.json", "model.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        self.records = [*records]
        lines = "".join(record.to_line() for record in self.records)
        write_atomically(self.path / "metrics.jsonl", lines.encode())

    def add_round(self, record: RoundRecord) -> None:
        """Append a round to ``metrics.jsonl``; it is on the disk when this returns."""
        append_line(self.path / "metrics.jsonl", record.to_line())
        self.records.append(record)

    @property
    def best_round(self) -> int:
        """The first round with the highest accuracy; 0 before the first evaluation.

        Rounds whose models are lost do not count: it is the round of
        ``best_model.safetensors``.
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
        """Write a model; safetensors refuses tensors that are not contiguous."""
        tensors = {name: tensor.contiguous() for name, tensor in state_dict.items()}
        write_atomically(self.path / name, save(tensors))

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
        write_json(self.path / "summary.json", summary)
        return summary

    def plot_rounds(self, config: RunConfig) -> None:
        """Plot accuracy, drift, layer scores and, if round 1 has scores, cosines."""
        # Importing matplotlib takes long, and plots may be switched off.
        from flfa_app.results import plots

        run = (config.dataset, config.model, config.algorithm, f"flfa={config.flfa}")
        title = ", ".join(run)
        plots.plot_progress(self.records, self.path / "progress.png", title=title)
        plots.plot_scores(self.records, self.path / "scores.png", title=title)
        if first_cosines(self.records):
            plots.plot_cosines(self.records, self.path / "cosines.png", title=title)

    def plot_partition(
        self, label_counts: Sequence[Sequence[int]], class_names: Sequence[str]
    ) -> None:
        """Plot the number of samples of each class (columns) on each client (rows).

        Without the counts of every client there is no plot: they need not report them.
        """
        if not all(label_counts):
            return
        from flfa_app.results import plots

        title = f"Training images of the {len(label_counts)} clients"
        path = self.path / "partition.png"
        plots.plot_partition(label_counts, path, title=title, class_names=class_names)


def output_folder(config: RunConfig) -> Path:
    """Return the folder that holds the directories of runs: ``runs`` by default."""
    return Path(config.output_dir or "runs").expanduser().resolve()
