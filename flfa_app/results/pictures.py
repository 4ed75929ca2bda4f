"""The pictures of a run.

What draws them is imported where it is needed: that takes long, and may be off.
"""

from __future__ import annotations

from collections.abc import Sequence

from flfa_app.config import RunConfig
from flfa_app.results.round_metrics import first_cosines
from flfa_app.results.run_directory import RunDirectory

__all__ = ["plot_partition", "plot_rounds"]


def plot_rounds(run: RunDirectory, config: RunConfig) -> None:
    """Draw what has become of a run."""
    from flfa_app.results import plots

    title = f"{config.dataset}, {config.model}, {config.algorithm}, flfa={config.flfa}"
    plots.plot_progress(run.records, run.path / "progress.png", title=title)
    plots.plot_scores(run.records, run.path / "scores.png", title=title)
    if first_cosines(run.records):
        plots.plot_cosines(run.records, run.path / "cosines.png", title=title)


def plot_partition(
    run: RunDirectory, counts: Sequence[Sequence[int]], class_names: tuple[str, ...]
) -> None:
    """Draw each client's counts of the classes, if all clients have told them."""
    if all(counts):
        from flfa_app.results import plots

        title = f"Training images of the {len(counts)} clients"
        path = run.path / "partition.png"
        plots.plot_partition(counts, path, title=title, class_names=class_names)
