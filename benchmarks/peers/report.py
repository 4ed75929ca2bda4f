"""From the seconds of the arms to the figures and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure

__all__ = ["GOALS", "figures_of", "missed", "rows_of", "table_of"]

Rows = Sequence[Mapping[str, Any]]
# How many times as long as ours a round takes, at least.
GOALS: dict[str, dict[str, float]] = {
    "pfl": {"mobilenet_v2": 1.1, "mobilenet_v2_imagenet": 1.6},
    "flower-quickstart": {"mobilenet_v2": 1.3, "mobilenet_v2_imagenet": 2.0},
}
OURS = {"none": "ours", "lowest": "ours-flfa"}


def rows_of(
    model: str,
    seconds: Mapping[str, npt.ArrayLike],
    accuracies: Mapping[str, float],
    distances: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return a row for each peer, compared with our app without and with FLFA.

    A round is compared with the same round of the same turn: it has the same clients.

    Parameters
    ----------
    model : str
        What was trained.
    seconds : Mapping[str, ArrayLike]
        Of each arm, turns and rounds.
    accuracies : Mapping[str, float]
        Of each arm, at the end.
    distances : Mapping[str, float]
        Of the peers' updates from ours, where rounding does not hide them.
    """
    times = {name: np.asarray(taken, np.float64) for name, taken in seconds.items()}
    rows = []
    for flfa, own in OURS.items():
        for peer, goals in GOALS.items():
            ratios = times[peer] / times[own]
            lower, ratio, upper = np.percentile(ratios, [25, 50, 75])
            rows.append(
                {
                    "model": model,
                    "peer": peer,
                    "flfa": flfa,
                    "ratio": round(float(ratio), 4),
                    "quartiles": [round(float(lower), 4), round(float(upper), 4)],
                    # The peers train without FLFA: that is the same work.
                    "goal": goals.get(model) if flfa == "none" else None,
                    "ratios-by-turn": ratios.round(4).tolist(),
                    "seconds": round(float(np.median(times[peer])), 3),
                    "seconds-ours": round(float(np.median(times[own])), 3),
                    "accuracy": accuracies[peer],
                    "accuracy-ours": accuracies[own],
                    "distance-of-updates": distances[peer] if flfa == "none" else None,
                }
            )
    return rows


def figures_of(rows: Rows) -> list[Figure]:
    """Return the rows as figures of the table of all benchmarks."""
    return [
        Figure(
            f"round of `{row['model']}`: {row['peer']} / ours"
            + ("" if row["flfa"] == "none" else " with FLFA"),
            row["ratio"],
            tuple(row["quartiles"]),
            "" if row["goal"] is None else f">= {row['goal']}",
        )
        for row in rows
    ]


def missed(rows: Rows) -> list[str]:
    """Name the rows that are below their goal."""
    return [
        f"{row['model']}, {row['peer']}: {row['ratio']:.2f}, goal {row['goal']:.1f}"
        for row in rows
        if row["goal"] is not None and row["ratio"] < row["goal"]
    ]


def table_of(rows: Rows) -> str:
    """Return a Markdown table of the rows."""
    lines = [
        "| model | peer | our FLFA | time of a round / ours | quartiles | goal | "
        "seconds | ours | accuracy | ours | distance of updates |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        goal, distance = row["goal"], row["distance-of-updates"]
        cells = (
            f"`{row['model']}`",
            row["peer"],
            row["flfa"],
            f"{row['ratio']:.2f}",
            "{:.2f} - {:.2f}".format(*row["quartiles"]),
            "" if goal is None else f"{goal:.1f}",
            f"{row['seconds']:.2f}",
            f"{row['seconds-ours']:.2f}",
            f"{row['accuracy']:.1%}",
            f"{row['accuracy-ours']:.1%}",
            "" if distance is None else f"{distance:.1e}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
