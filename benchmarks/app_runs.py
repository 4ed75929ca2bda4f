"""Real runs of the app, and how long their rounds took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flfa_app.launch.superlink import SuperLink

__all__ = ["round_seconds", "run_app"]


def run_app(
    superlink: SuperLink, keys: Mapping[str, Any], *, nodes: int, folder: Path
) -> list[dict[str, Any]]:
    """Run the app with ``flwr run`` on two workers; return its rounds.

    Raises
    ------
    RuntimeError
        If the run has failed.
    """
    lines: list[str] = []
    outcome = superlink.run(
        run_config=keys,
        nodes=nodes,
        workers=2,
        output_dir=folder,
        show=lines.append,
    )
    if not outcome.completed or outcome.results is None:
        log = "\n".join(lines[-40:])
        raise RuntimeError(f"the run has failed: {outcome.details}\n{log}")
    rows = (outcome.results / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


def round_seconds(row: Mapping[str, Any]) -> float:
    """Return how long a round took, the evaluation aside."""
    return float(row["seconds"]["train"] + row["seconds"]["aggregate"])
