"""Plots of a run: valid files at every size, and the data they show."""

import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.results.plots.figure import save_png
from flfa_app.results.plots.partition import plot_partition
from flfa_app.results.plots.rounds import (
    ROUND_PLOTS,
    plot_cosines,
    plot_progress,
    plot_scores,
)
from flfa_app.results.records import Evaluation, RoundRecord
from tests.federation import ROOT

TITLE = "a run with a title"


def make_rounds(n_layers: int, n_rounds: int) -> list[RoundRecord]:
    """Return a log whose round t selects every layer i with (i + t) % 3 == 0."""
    rng = np.random.default_rng(0)
    layers = [f"block{i}.conv" for i in range(n_layers)]
    records = [RoundRecord(0, Evaluation(0.1))]
    for t in range(1, n_rounds + 1):
        chosen = [name for i, name in enumerate(layers) if t > 1 and (i + t) % 3 == 0]
        record = RoundRecord(
            t,
            None if t % 2 else Evaluation(0.5),
            drift=1 / t,
            selected=tuple(chosen),
            scores={name: float(rng.uniform(-0.2, 0.9)) for name in layers},
        )
        records.append(record)
    return records


def assert_picture(path: Path) -> None:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    assert all(300 <= side <= 6000 for side in struct.unpack(">II", head[16:24]))


def texts(fig: Any) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


NO_NUMBERS = RoundRecord(
    1, Evaluation(math.nan), 1.0, ("b",), {"a": math.nan, "b": math.inf}
)


@pytest.mark.parametrize(
    ("rounds", "missing"),
    [
        (make_rounds(1, 1), []),
        (make_rounds(2, 3)[1:], []),
        (make_rounds(40, 70), []),  # the figures have reached their largest size
        ([NO_NUMBERS], ["cosines.png"]),
        ([RoundRecord(1)], ["scores.png", "cosines.png"]),
    ],
)
def test_plots_of_few_many_and_empty_rounds(
    tmp_path: Path, rounds: list[RoundRecord], missing: list[str]
) -> None:
    for name, plot in ROUND_PLOTS.items():
        figure = plot(rounds, TITLE)
        assert (figure is None) == (name in missing)
        if figure is None:
            continue
        save_png(figure, tmp_path / name)
        assert_picture(tmp_path / name)
        for ax in figure.axes:
            if ax.get_xlabel() == "round":
                ticks = np.asarray(ax.get_xticks())
                np.testing.assert_array_equal(ticks, np.round(ticks))


@pytest.mark.parametrize("shape", [(1, 1), (200, 100)])
@pytest.mark.parametrize("mean", [0, 99])
def test_plots_of_small_large_and_empty_partitions(
    tmp_path: Path, shape: tuple[int, int], mean: int
) -> None:
    counts = np.random.default_rng(0).poisson(mean, shape)
    names = [f"a class named {i}" for i in range(shape[1])]
    fig = plot_partition(counts.tolist(), names, TITLE)
    save_png(fig, tmp_path / "partition.png")
    assert_picture(tmp_path / "partition.png")
    cells = fig.axes[0]
    assert len(cells.get_xticks()) <= 50
    assert len(cells.get_yticks()) <= 50
    assert len(texts(fig)) == (1 if mean and shape == (1, 1) else 0)


def test_partition_shows_counts_sizes_and_names() -> None:
    fig = plot_partition([[5, 0], [7, 8]], ["cat", "dog"], TITLE)
    cells, sizes = fig.axes[:2]
    drawn = cells.images[0].get_array()
    assert drawn is not None
    np.testing.assert_array_equal(np.ma.filled(drawn, 0), [[5, 0], [7, 8]])
    assert [label.get_text() for label in cells.get_xticklabels()] == ["cat", "dog"]
    assert sorted(texts(fig)) == ["5", "7", "8"]
    assert [bar.get_width() for bar in sizes.patches] == [5, 15]  # type: ignore[attr-defined]


def test_scores_keep_model_order_and_gaps_and_mark_the_selection() -> None:
    """Round 0 has no scores, round 2 has no record."""
    nan = math.nan
    rounds = [
        RoundRecord(0),
        RoundRecord(1, scores={"z": 0.1, "a": nan}),
        RoundRecord(3, scores={"z": math.inf, "a": -0.5}, selected=("a",)),
        RoundRecord(4, scores={"z": 0.2, "a": 0.3}, selected=("z", "a")),
    ]
    fig = plot_scores(rounds, TITLE)
    assert fig is not None
    ax = fig.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["z", "a"]
    (image,) = ax.images
    assert tuple(image.get_extent()) == (0.5, 4.5, 1.5, -0.5)
    drawn = np.ma.filled(np.ma.asarray(image.get_array()), nan)
    np.testing.assert_array_equal(drawn, [[0.1, nan, nan, 0.2], [nan, nan, -0.5, 0.3]])
    assert len(ax.lines) == 2
    for boxes in ax.lines:  # rims and faces
        points = np.asarray(boxes.get_xydata()).tolist()
        assert sorted(points) == [[3, 1], [4, 0], [4, 1]]


def test_progress_skips_rounds_that_were_not_measured() -> None:
    top, bottom = plot_progress(make_rounds(1, 4), TITLE).axes
    shown = np.asarray(top.lines[0].get_xydata(), dtype=float)
    np.testing.assert_allclose(shown, [[0, 10], [2, 50], [4, 50]])
    np.testing.assert_array_equal(bottom.lines[0].get_xdata(), [1, 2, 3, 4])
    assert top.get_title(loc="right") == "best 50.0 % (round 2), last 50.0 %"
    nothing = ["no test accuracy recorded", "no local drift H recorded"]
    assert texts(plot_progress([], TITLE)) == nothing


def test_cosines_shows_bars_strokes_and_skewness() -> None:
    """Bins [0.1, 0.15), [0.15, 0.2) and [0.2, 0.25) with 3, 0 and 1 layers.

    0.1, 0.1, 0.1, 0.2 are 0, 0, 0, 1 moved and scaled: skewness 2/√3 = 1.15.
    """
    first = {"a": 0.1, "b": 0.1, "c": math.nan, "d": 0.1, "e": 0.2}
    rounds = [RoundRecord(1, scores=first), RoundRecord(2, scores={"a": 0.9})]
    fig = plot_cosines(rounds, TITLE)
    assert fig is not None
    ax, strip = fig.axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in ax.patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(bars, [(0.1, 0.05, 3), (0.15, 0.05, 0), (0.2, 0.05, 1)])
    (strokes,) = strip.collections
    positions = strokes.get_positions()  # type: ignore[attr-defined]
    np.testing.assert_allclose(positions, [0.1, 0.1, 0.1, 0.2])
    assert ax.get_title(loc="right") == "round 1: 4 layers, skewness +1.15"


def test_plots_need_neither_pyplot_nor_the_main_thread(tmp_path: Path) -> None:
    """The ServerApp runs in another thread, where pyplot and its windows fail."""
    script = """if True:
        import sys, threading, pathlib
        from flfa_app.results.plots import figure, partition, rounds
        from flfa_app.results.records import Evaluation, RoundRecord
        def draw():
            records = [RoundRecord(1, Evaluation(0.5), 1.0, ("a",), {"a": 0.5})]
            drawn = [plot(records, "t") for plot in rounds.ROUND_PLOTS.values()]
            drawn.append(partition.plot_partition([[1]], "a", "t"))
            for i, fig in enumerate(drawn):
                figure.save_png(fig, pathlib.Path(sys.argv[1], str(i)))
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        sys.exit("matplotlib.pyplot" in sys.modules)
    """
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    for i in range(4):
        assert_picture(tmp_path / str(i))
