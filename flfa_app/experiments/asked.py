"""What is asked for: a grid file, and what earlier calls have added to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flfa_app.experiments.grid import read_grid
from flfa_app.experiments.plan import choose
from flfa_app.experiments.store import Cell, Results, has_grid, read_results

__all__ = ["asked_for"]


def asked_for(
    path: Path,
    folder: Path,
    only: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[int] = (),
) -> tuple[Results, list[Cell]]:
    """Return all that was ever asked for, and the cells that are asked for now.

    Parameters
    ----------
    path, folder : Path
        A grid file and its results folder. Seeds that earlier calls have added are
        in the folder's ``grid.json`` alone; what was run with them stays in the tables.
    only : Mapping[str, Sequence[str]], optional
        Axis values; nothing is all.
    seeds : Sequence[int]
        Seeds, also such that the file does not have; nothing is those of the file.
    """
    own = read_grid(path).grid.seeds
    before = read_results(folder) if has_grid(folder) else None
    added = before.grid.seeds if before else []
    file = read_grid(path, [*added, *seeds])
    everything = Results(folder, file.grid, file.cells)
    chosen = choose(everything, only or {}, seeds or own)
    # A further seed of some cells does not make the others cells that are not run.
    asked = {cell.id for cell in [*chosen, *(before.cells if before else [])]}
    cells = [cell for cell in file.cells if cell.seed in own or cell.id in asked]
    return Results(folder, file.grid, cells), chosen
