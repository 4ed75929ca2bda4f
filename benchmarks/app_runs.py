"""Real runs of the app, and how long their rounds took."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flfa_app.launch.superlink import SuperLink
from flfa_app.results.records import RoundRecord, read_records

__all__ = ["run_app"]


def run_app(
    superlink: SuperLink, keys: Mapping[str, Any], *, nodes: int, folder: Path
) -> list[RoundRecord]:
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
        on_log_line=lines.append,
    )
    if not outcome.completed or outcome.results is None:
        log = "\n".join(lines[-40:])
        raise RuntimeError(f"the run has failed: {outcome.details}\n{log}")
    return read_records(outcome.results / "metrics.jsonl")
