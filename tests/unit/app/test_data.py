from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flfa_app.data import DATASETS, load_images, partition_indices
from tests.federation import ROOT

# Small real files that may lie beside the checkout.
REAL = ROOT.parent / "shared" / "data" / "medmnist-small"
LABELS = tuple(load_images("digits").train_labels.tolist())
DIRICHLET = {"partitioner": "dirichlet", "beta": 0.3, "min_size": 1, "seed": 0}


def test_digits() -> None:
    images = load_images("digits")
    assert images.train.shape == (1438, 1, 8, 8)
    assert images.test.shape == (359, 1, 8, 8)
    assert (images.channels, images.size, len(images.class_names)) == (1, 8, 10)
    assert images.train.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.train.std().item() == pytest.approx(1, abs=1e-3)
    # A fifth of each digit, rounded, is for testing.
    totals = (images.train_labels.bincount() + images.test_labels.bincount()) / 5
    assert torch.all((images.test_labels.bincount() - totals).abs() <= 1)


def test_loading_again_reads_nothing() -> None:
    assert load_images("digits") is load_images("digits")


@pytest.mark.parametrize("partitioner", ["dirichlet", "iid"])
@pytest.mark.parametrize("clients", [1, 2, 20, 100])
def test_every_image_has_exactly_one_owner(partitioner: str, clients: int) -> None:
    keys = {**DIRICHLET, "partitioner": partitioner}
    parts = partition_indices(LABELS, clients, **keys)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))


def test_the_partition_depends_on_the_seed_and_nothing_else() -> None:
    def draw(seed: int) -> list[list[int]]:
        # Not from the cache: as another process would.
        fresh = partition_indices.__wrapped__(LABELS, 20, **{**DIRICHLET, "seed": seed})
        return [part.tolist() for part in fresh]

    one = draw(0)
    np.random.default_rng().random()
    np.random.seed(7)  # noqa: NPY002 (nobody may depend on it)
    assert draw(0) == one
    assert draw(1) != one


def test_small_beta_gives_clients_few_classes() -> None:
    def classes(beta: float) -> float:
        parts = partition_indices(LABELS, 20, **{**DIRICHLET, "beta": beta})
        return float(np.mean([len({LABELS[i] for i in part}) for part in parts]))

    assert classes(0.05) < classes(0.3) < classes(100.0)
    assert classes(100.0) > 9


def test_minimum_size_holds() -> None:
    parts = partition_indices(LABELS, 100, **{**DIRICHLET, "min_size": 4})
    assert min(map(len, parts)) >= 4


def test_an_impossible_minimum_is_an_error_with_a_cure() -> None:
    with pytest.raises(
        ValueError, match=r"min-partition-size is 15: 100 clients .*1500"
    ):
        partition_indices(LABELS, 100, **{**DIRICHLET, "min_size": 15})
    with pytest.raises(ValueError, match=r"dirichlet-beta 0\.3 .*lower min-partition"):
        partition_indices(LABELS, 200, **{**DIRICHLET, "min_size": 5})


def write_npz(path: Path, channels: int) -> None:
    shape = (20, 28, 28) if channels == 1 else (20, 28, 28, channels)
    rng = np.random.default_rng(0)
    np.savez(
        path,
        train_images=rng.integers(0, 256, shape, np.uint8),
        train_labels=rng.integers(0, 2, (20, 1), np.uint8),
        test_images=rng.integers(0, 256, shape, np.uint8),
        test_labels=rng.integers(0, 2, (20, 1), np.uint8),
    )


@pytest.mark.parametrize(("name", "channels"), [("bloodmnist", 3), ("organcmnist", 1)])
def test_medmnist_layout(tmp_path: Path, name: str, channels: int) -> None:
    write_npz(tmp_path / f"{name}.npz", channels)
    images = load_images(name, str(tmp_path))
    assert images.train.shape == (20, channels, 28, 28)
    assert images.train_labels.shape == (20,)
    np.testing.assert_allclose(images.train.mean((0, 2, 3)), 0, atol=1e-5)


def test_a_missing_file_says_where_it_was_looked_for_and_where_to_get_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileNotFoundError, match=r"bloodmnist\.npz is missing.*https?:"):
        load_images("bloodmnist", str(tmp_path))


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real files in {REAL.name}/")
@pytest.mark.parametrize("name", ["breastmnist", "pneumoniamnist"])
def test_real_medmnist_files(name: str) -> None:
    images = load_images(name, str(REAL))
    assert images.size == 28
    assert int(images.train_labels.max()) == len(images.class_names) - 1


def test_the_names_are_those_of_the_medmnist_package() -> None:
    import medmnist

    single = {
        name
        for name, info in medmnist.INFO.items()
        if "multi-label" not in info["task"] and not name.endswith("3d")
    }
    assert set(DATASETS) - {"digits"} == single
