"""The work that all arms do: exported once from our own code, read by the peers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file

from benchmarks.peers.images import write_images
from flfa_app.config import RunConfig
from flfa_app.launch.app_files import default_run_config
from flfa_app.server.nodes import Node, NodeRegistry
from flfa_app.server.sampling import ParticipantSampler
from flfa_app.task import client_seed, images_of, model_of, partitions_of

__all__ = ["CLIENTS", "NORMS", "WORKERS", "Work", "export_work"]

CLIENTS, WORKERS = 100, 2
# The app's default of the small net, and what the paper's settings use.
NORMS = {"cnn": "group", "mobilenet_v2": "batch", "mobilenet_v2_imagenet": "batch"}
# BatchNorm after a map of one pixel makes infinities of two or three images that are
# nearly the same, with stock torch as with our trainer.
SMALLEST_BATCH = 4
SEEDS = range(1000)
# By client; JSON has texts for keys.
Seeds = dict[str, int]


class Work(NamedTuple):
    """What is trained, and where the peers find it.

    Parameters
    ----------
    folder : Path
        ``images.npz``, ``work.json``, ``partition.npz``, ``initial.safetensors``.
    keys : Mapping[str, Any]
        The run config of our own app.
    """

    folder: Path
    keys: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        """The whole run config of our own app."""
        return RunConfig.parse({**default_run_config(), **self.keys})

    @property
    def participants(self) -> list[list[int]]:
        """The clients of each round."""
        rounds = json.loads((self.folder / "work.json").read_text())["rounds"]
        return [[int(client) for client in seeds] for seeds in rounds]


def export_work(folder: Path, model: str, rounds: int, **other_keys: Any) -> Work:
    """Write what the peers need to do what our app does.

    Parameters
    ----------
    folder : Path
        To write to; the images in it are kept.
    model : str
        One of `NORMS`.
    rounds : int
        Rounds of a run.
    other_keys : Any
        Of our run config, with underscores, where they are not the paper's.
    """
    if not (folder / "images.npz").exists():
        write_images(folder / "images.npz")
    keys = _keys(folder, model, rounds)
    keys |= {key.replace("_", "-"): value for key, value in other_keys.items()}
    work, shards, seeds = _first_without_tiny_batches(folder, keys)
    config = work.config
    np.savez(folder / "partition.npz", *shards)
    initial = model_of(config).state_dict()
    # However our model lies in memory, the peers' lies as torch lays it.
    contiguous = {name: tensor.contiguous() for name, tensor in initial.items()}
    save_file(contiguous, folder / "initial.safetensors")
    description = images_of(config).description
    given = {
        "model": model,
        "norm": config.norm,
        "classes": len(description.class_names),
        "pixel-mean": description.mean,
        "pixel-deviation": description.deviation,
        "batch-size": config.batch_size,
        "local-epochs": config.local_epochs,
        "learning-rate": config.learning_rate,
        "momentum": config.momentum,
        "weight-decay": config.weight_decay,
        "clients": CLIENTS,
        "rounds": seeds,
    }
    (folder / "work.json").write_text(json.dumps(given, indent=1))
    return work


def _keys(folder: Path, model: str, rounds: int) -> dict[str, Any]:
    """Return the paper's BloodMNIST setting, without what is not measured."""
    return {
        "dataset": "files",
        "data-dir": str(folder / "images.npz"),
        "model": model,
        "norm": NORMS[model],
        "algorithm": "fedavg",
        "flfa": "none",
        "num-server-rounds": rounds,
        "partitioner": "dirichlet",
        "dirichlet-beta": 0.3,
        "fraction-train": 0.1,
        "local-epochs": 5,
        "batch-size": 64,
        "learning-rate": 0.01,
        "lr-decay": 1.0,
        "momentum": 0.9,
        "weight-decay": 0.001,
        "device": "cpu",
        "threads-per-client": 1,
        "pictures": False,
        "checkpoint-every": 0,
        "evaluate-every": rounds,
    }


def _first_without_tiny_batches(
    folder: Path, keys: Mapping[str, Any]
) -> tuple[Work, Sequence[NDArray[np.int64]], list[Seeds]]:
    """Return the work with the first seed that gives no participant a tiny batch."""
    for seed in SEEDS:
        work = Work(folder, {**keys, "seed": seed})
        config = work.config
        shards = partitions_of(config, CLIENTS)
        seeds = _seeds(config, [len(shard) for shard in shards])
        drawn = {int(client) for one in seeds for client in one}
        last = [len(shards[client]) % config.batch_size for client in drawn]
        if not any(0 < size < SMALLEST_BATCH for size in last):
            return work, shards, seeds
    raise RuntimeError(
        f"with {keys['num-server-rounds']} rounds every seed up to {SEEDS[-1]} has a "
        f"participant whose last batch has fewer than {SMALLEST_BATCH} images; use "
        "fewer --rounds"
    )


def _seeds(config: RunConfig, sizes: Sequence[int]) -> list[Seeds]:
    """Return who takes part in each round, and the seed of each one's batch order."""
    registry = NodeRegistry(Node(i, i, size) for i, size in enumerate(sizes))
    rounds = []
    for server_round in range(1, config.num_server_rounds + 1):
        sampler = ParticipantSampler(
            registry,
            fraction=config.fraction_train,
            minimum=config.min_train_nodes,
            seed=config.seed,
            server_round=server_round,
        )
        nodes = sampler.next_participants(sampler.num_participants)
        drawn = [node.partition_id for node in nodes]
        rounds.append(
            {str(i): client_seed(config.seed, server_round, i) for i in drawn}
        )
    return rounds
