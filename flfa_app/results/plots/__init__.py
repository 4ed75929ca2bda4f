"""Plots of a run: progress, layer scores, cosines and the data partition."""

from flfa_app.results.plots.cosines import plot_cosines
from flfa_app.results.plots.partition import plot_partition
from flfa_app.results.plots.progress import plot_progress
from flfa_app.results.plots.scores import plot_scores

__all__ = ["plot_cosines", "plot_partition", "plot_progress", "plot_scores"]
