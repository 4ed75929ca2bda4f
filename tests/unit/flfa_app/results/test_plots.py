"""Plots of a run: valid files at every size, and the data they show."""

import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.results import plots
from flfa_app.results.plots import cosines, partition, progress, scores
from flfa_app.results.records import Evaluation, RoundRecord

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


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def assert_picture(path: Path) -> None:
    assert all(300 <= side <= 6000 for side in png_size(path))


def texts(fig: Any) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def plot_rounds(rounds: list[RoundRecord], folder: Path) -> None:
    plots.plot_scores(rounds, folder / "scores.png", title=TITLE)
    plots.plot_progress(rounds, folder / "new" / "progress.png", title=TITLE)
    plots.plot_cosines(rounds, folder / "cosines.png", title="")
    for name in ("scores.png", "new/progress.png", "cosines.png"):
        assert_picture(folder / name)


@pytest.mark.parametrize("shape", [(1, 1), (40, 70)])
def test_plots_of_few_and_of_many_rounds(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    """With 40 layers and 70 rounds the figures have reached their largest size."""
    plot_rounds(make_rounds(*shape), tmp_path)


def test_plots_without_values(tmp_path: Path) -> None:
    plot_rounds([], tmp_path)
    scores = {"a": math.nan, "b": math.inf}
    plot_rounds([RoundRecord(1, Evaluation(math.nan), 1.0, ("b",), scores)], tmp_path)


@pytest.mark.parametrize("shape", [(1, 1), (200, 100)])
def test_plots_of_small_and_large_partitions(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    counts = np.random.default_rng(0).negative_binomial(1, 0.01, shape)
    path = tmp_path / "partition.png"
    plots.plot_partition(counts.tolist(), path, title=TITLE)
    assert_picture(path)


@pytest.mark.parametrize("counts", [[[]], [[0, 0], [0, 0]]])
def test_plot_of_an_empty_partition(tmp_path: Path, counts: list[list[int]]) -> None:
    path = tmp_path / "partition.png"
    plots.plot_partition(counts, path, title=TITLE)
    assert_picture(path)


def test_partition_needs_one_name_per_class(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 class names for 2 classes"):
        plots.plot_partition([[1, 2]], tmp_path / "p.png", title="", class_names="abc")


def test_partition_shows_counts_sizes_and_names() -> None:
    fig = partition._partition_figure([[5, 0], [7, 8]], ["cat", "dog"], TITLE)
    cells, sizes = fig.axes[:2]
    drawn = cells.images[0].get_array()
    assert drawn is not None
    np.testing.assert_array_equal(np.ma.filled(drawn, 0), [[5, 0], [7, 8]])
    assert [label.get_text() for label in cells.get_xticklabels()] == ["cat", "dog"]
    assert sorted(texts(fig)) == ["5", "7", "8"]
    assert [bar.get_width() for bar in sizes.patches] == [5, 15]  # type: ignore[attr-defined]


def test_partition_thins_labels_and_counts_when_crowded() -> None:
    names = [f"a class named {i}" for i in range(100)]
    fig = partition._partition_figure(np.ones((200, 100), int).tolist(), names, TITLE)
    cells = fig.axes[0]
    assert texts(fig) == []
    assert len(cells.get_xticks()) <= 50
    assert len(cells.get_yticks()) <= 50


def test_score_table_keeps_model_order_gaps_and_skips_round_zero() -> None:
    rounds = [
        RoundRecord(0),
        RoundRecord(1, scores={"z": 0.1, "a": math.nan}),
        RoundRecord(3, scores={"z": math.inf, "a": -0.5}, selected=("a",)),
    ]
    table = scores._score_table(rounds)
    assert table.layers == ["z", "a"]
    assert table.first_round == 1
    nan = math.nan
    np.testing.assert_array_equal(table.z, [[0.1, nan, nan], [nan, nan, -0.5]])
    assert table.selected == [(3, 1)]


def test_marks_are_the_selected_cells() -> None:
    rounds = make_rounds(4, 7)
    expected = {
        (record.server_round, list(record.scores).index(name))
        for record in rounds
        for name in record.selected
    }
    assert expected
    fig = scores._scores_figure(scores._score_table(rounds), TITLE)
    for boxes in fig.axes[0].lines:  # rims and faces
        points = np.asarray(boxes.get_xydata()).tolist()
        assert {(int(x), int(y)) for x, y in points} == expected
        assert len(points) == len(expected)


def test_map_cells_lie_under_their_rounds_and_layers() -> None:
    rounds = make_rounds(4, 7)[3:]
    image = scores._scores_figure(scores._score_table(rounds), TITLE).axes[0].images[0]
    assert tuple(image.get_extent()) == (2.5, 7.5, 3.5, -0.5)
    drawn = np.asarray(image.get_array())
    assert drawn[2, 0] == rounds[0].scores["block2.conv"]


def test_progress_skips_rounds_that_were_not_measured() -> None:
    top, bottom = progress._progress_figure(make_rounds(1, 4), TITLE).axes
    shown = np.asarray(top.lines[0].get_xydata(), dtype=float)
    np.testing.assert_allclose(shown, [[0, 10], [2, 50], [4, 50]])
    np.testing.assert_array_equal(bottom.lines[0].get_xdata(), [1, 2, 3, 4])
    assert top.get_title(loc="right") == "best 50.0 % (round 2), last 50.0 %"


def test_cosines_shows_bars_strokes_and_skewness() -> None:
    """Bins [0.1, 0.15), [0.15, 0.2) and [0.2, 0.25) with 3, 0 and 1 layers.

    0.1, 0.1, 0.1, 0.2 are 0, 0, 0, 1 moved and scaled: skewness 2/√3 = 1.15.
    """
    first = {"a": 0.1, "b": 0.1, "c": math.nan, "d": 0.1, "e": 0.2}
    rounds = [RoundRecord(1, scores=first), RoundRecord(2, scores={"a": 0.9})]
    ax, strip = cosines._cosines_figure(rounds, TITLE).axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in ax.patches]  # type: ignore[attr-defined]
    expected = [(0.1, 0.05, 3), (0.15, 0.05, 0), (0.2, 0.05, 1)]
    np.testing.assert_allclose(bars, expected)
    (strokes,) = strip.collections
    positions = strokes.get_positions()  # type: ignore[attr-defined]
    np.testing.assert_allclose(positions, [0.1, 0.1, 0.1, 0.2])
    assert ax.get_title(loc="right") == "round 1: 4 layers, skewness +1.15"


def test_missing_data_is_named_in_the_picture() -> None:
    nothing = cosines._cosines_figure([RoundRecord(1)], TITLE)
    assert texts(nothing) == ["no layer scores in round 1"]
    empty = scores._scores_figure(scores._score_table([]), TITLE)
    assert texts(empty) == ["no layer scores: FLFA was off"]
    assert texts(progress._progress_figure([], TITLE)) == [
        "no test accuracy recorded",
        "no local drift H recorded",
    ]


@pytest.mark.parametrize("n_rounds", [1, 3, 100])
def test_round_ticks_are_integers(n_rounds: int) -> None:
    rounds = make_rounds(2, n_rounds)[1:]
    for fig in (
        progress._progress_figure(rounds, TITLE),
        scores._scores_figure(scores._score_table(rounds), TITLE),
    ):
        ax = fig.axes[1] if len(fig.axes[0].images) == 0 else fig.axes[0]
        ticks = np.asarray(ax.get_xticks())
        np.testing.assert_array_equal(ticks, np.round(ticks))


def test_plots_need_neither_pyplot_nor_the_main_thread(tmp_path: Path) -> None:
    """The ServerApp runs in another thread, where pyplot and its windows fail."""
    script = (
        "import sys, threading, pathlib\n"
        "from flfa_app.results import plots\n"
        "from flfa_app.results.records import Evaluation, RoundRecord\n"
        "out = pathlib.Path(sys.argv[1])\n"
        "rounds = [RoundRecord(1, Evaluation(0.5), 1.0, ('a',), {'a': 0.5})]\n"
        "def draw():\n"
        "    plots.plot_progress(rounds, out / 'a.png', title='t')\n"
        "    plots.plot_scores(rounds, out / 'b.png', title='t')\n"
        "    plots.plot_partition([[1]], out / 'c.png', title='t')\n"
        "    plots.plot_cosines(rounds, out / 'd.png', title='t')\n"
        "thread = threading.Thread(target=draw)\n"
        "thread.start()\n"
        "thread.join()\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)\n"
    )
    root = Path(plots.__file__).parents[3]
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0
    for name in ("a.png", "b.png", "c.png", "d.png"):
        assert_picture(tmp_path / name)
