"""A partition from the cache is the one that was drawn."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.data import cache as kept
from flfa_app.data.cache import cached_partition
from flfa_app.data.loading import load_dataset
from flfa_app.data.partition import partition_indices

LABELS = load_dataset("digits").train_labels
DIRICHLET = {"partitioner": "dirichlet", "beta": 0.5, "min_size": 1, "seed": 0}
NATURAL = DIRICHLET | {"partitioner": "natural"}


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each partition that is drawn."""
    drawn: list[int] = []

    def draw(*args: Any, **settings: Any) -> Any:
        drawn.append(1)
        return partition_indices(*args, **settings)

    monkeypatch.setattr(kept, "partition_indices", draw)
    return drawn


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(
    "settings",
    [
        DIRICHLET,
        DIRICHLET | {"partitioner": "iid"},
        DIRICHLET | {"partitioner": "shards", "shards_per_client": 2},
    ],
    ids=lambda settings: settings["partitioner"],
)
def test_it_is_drawn_once(settings: dict, draws: list[int]) -> None:
    expected = partition_indices(LABELS, 10, **settings)
    for _ in range(3):
        assert same(cached_partition(LABELS, 10, **settings), expected)
    assert len(draws) == 1


def test_owners_are_part_of_it(draws: list[int]) -> None:
    for names in (["a", "b", "a"], ["b", "a", "a"]):
        owners = np.array(names)
        expected = partition_indices(LABELS[:3], 2, **NATURAL, owners=owners)
        for _ in range(2):
            found = cached_partition(LABELS[:3], 2, **NATURAL, owners=owners)
            assert same(found, expected)
    assert len(draws) == 2


@pytest.mark.parametrize("other", [{"seed": 1}, {"beta": 0.6}, {"min_size": 2}])
def test_another_setting_is_another_partition(other: dict, draws: list[int]) -> None:
    cached_partition(LABELS, 10, **DIRICHLET)
    found = cached_partition(LABELS, 10, **DIRICHLET | other)
    assert same(found, partition_indices(LABELS, 10, **DIRICHLET | other))
    assert len(draws) == 2


def test_other_labels_or_numbers_are_another_partition(draws: list[int]) -> None:
    cached_partition(LABELS, 10, **DIRICHLET)
    cached_partition(LABELS[::-1], 10, **DIRICHLET)
    cached_partition(LABELS, 11, **DIRICHLET)
    assert len(draws) == 3


def test_another_version_may_draw_otherwise(
    monkeypatch: pytest.MonkeyPatch, draws: list[int]
) -> None:
    cached_partition(LABELS, 10, **DIRICHLET)
    monkeypatch.setattr(kept, "version", lambda name: "0")
    cached_partition(LABELS, 10, **DIRICHLET)
    assert len(draws) == 2


@pytest.mark.parametrize("content", [b"", b"PK half", None], ids=str)
def test_a_damaged_one_is_drawn_again(
    content: bytes | None,
    draws: list[int],
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = cached_partition(LABELS, 10, **DIRICHLET)
    (file,) = cache.glob("partition-*.npz")
    file.write_bytes(file.read_bytes()[:-30] if content is None else content)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert same(cached_partition(LABELS, 10, **DIRICHLET), expected)
    assert f"{file} is damaged" in caplog.text
    assert same(cached_partition(LABELS, 10, **DIRICHLET), expected)
    assert len(draws) == 2
    assert [path.name for path in cache.iterdir()] == [file.name]


def test_without_a_cache_it_is_drawn_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    draws: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FLFA_CACHE", "/dev/null/nowhere")
    with caplog.at_level(logging.WARNING, "flwr"):
        found = cached_partition(LABELS, 10, **DIRICHLET)
    assert same(found, partition_indices(LABELS, 10, **DIRICHLET))
    assert "partition cannot be cached" in caplog.text
    assert "damaged" not in caplog.text


def test_a_partition_that_does_not_exist_is_not_kept(cache: Path) -> None:
    with pytest.raises(ValueError, match="min-partition-size"):
        cached_partition(LABELS, 10, **DIRICHLET | {"min_size": 1000})
    assert not list(cache.glob("partition-*"))
