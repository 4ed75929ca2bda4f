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
from flfa_app.files import append_line, exclusive_lock, write_atomically, write_json
from flfa_app.results.metrics import METRICS, FinishedRun
from flfa_app.results.provenance import SOURCE, git_commit, package_versions
from flfa_app.results.records import RoundRecord
from flfa_app.results.round_metrics import accuracies


class RunDirectory:
    """The files of a run, and its rounds so far."""

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self.model = model
        self.records: list[RoundRecord] = []
        self.lost_models: set[int] = set()
        """Rounds before a resumption whose models have no intact checkpoint."""

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

        ``run_id`` is Flower's; a resumed run has several. ``metadata`` are facts about
        nodes, data and model.
        """
        file = self.path / "config.json"
        previous = json.loads(file.read_text()) if file.exists() else {}
        content = {
            "run-config": config.as_keys(),
            **metadata,
            "run-ids": [*previous.get("run-ids", ()), str(run_id)],
            "versions": package_versions(),
            "git-commit": git_commit(Path(os.environ.get(SOURCE, "."))),
        }
        write_json(file, content)

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
        known = accuracies(
            r for r in self.records if r.server_round not in self.lost_models
        )
        return max(known, key=known.__getitem__, default=0)

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
        facts = (self.best_round, no_op_rounds, stopped_early, seconds)
        run = FinishedRun(self.model, self.records, *facts)
        summary = {key: spec.of_run(run) for key, spec in METRICS.items()}
        write_json(self.path / "summary.json", summary)
        return summary

    def plot_rounds(self, config: RunConfig) -> None:
        """Write the plots of the rounds."""
        # Importing matplotlib takes long, and plots may be switched off.
        from flfa_app.results.plots.figure import save_png
        from flfa_app.results.plots.rounds import ROUND_PLOTS

        run = (config.dataset, config.model, config.algorithm, f"flfa={config.flfa}")
        for name, plot in ROUND_PLOTS.items():
            if (figure := plot(self.records, ", ".join(run))) is not None:
                save_png(figure, self.path / name)

    def plot_partition(
        self, label_counts: Sequence[Sequence[int]], class_names: Sequence[str]
    ) -> None:
        """Plot the number of samples of each class (columns) on each client (rows).

        Without the counts of every client there is no plot: they need not report them.
        """
        if not all(label_counts):
            return
        from flfa_app.results.plots.figure import save_png
        from flfa_app.results.plots.partition import plot_partition

        title = f"Training images of the {len(label_counts)} clients"
        figure = plot_partition(label_counts, class_names, title)
        save_png(figure, self.path / "partition.png")


def output_folder(config: RunConfig) -> Path:
    """Return the folder that holds the directories of runs: ``runs`` by default."""
    return Path(config.output_dir or "runs").expanduser().resolve()
