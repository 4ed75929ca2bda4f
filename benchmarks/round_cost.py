"""``python -m benchmarks.round_cost``: what a round costs beyond the clients' training.

A round of ``flwr run``: 100 nodes, 10 a round, ``mobilenet_v2``, data of BloodMNIST's
size, 2 workers, the paper's settings, the evaluation aside. Against it the bare
training of the same clients, longest first, on 2 processes that have model and data at
hand and know nothing of Flower. The two take turns, each goes first by turns; round 1
of a run is left out, in which the workers start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.app_runs import run_app
from benchmarks.figures import of_measurements, output_file, publish
from benchmarks.peers.work import CLIENTS, NORMS, Work, export_work
from clients import LocalTrainer, TrainSettings, keep_freed_memory
from flfa_app.client.images import client_images
from flfa_app.client.node_config import NodeConfig
from flfa_app.launch.app_files import PROJECT
from flfa_app.launch.cli import positive_int
from flfa_app.launch.superlink import local_superlink
from flfa_app.task import client_seed, images_of, model_for

__all__ = ["main"]

GOAL = "<= 1.08"
WORKERS = 2
# A run in which every round counts; a checkpoint after each, as is the default.
KEYS = {"flfa": "lowest", "evaluate-every": 1000, "checkpoint-every": 1}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the goal is missed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.round_cost", description=__doc__
    )
    parser.add_argument(
        "--model", choices=NORMS, default="mobilenet_v2", help="(mobilenet_v2)"
    )
    parser.add_argument(
        "--turns", type=positive_int, default=2, help="runs of each (2)"
    )
    parser.add_argument("--rounds", type=int, default=4, help="of a run (4)")
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: the first is left out")
    with tempfile.TemporaryDirectory() as folder:
        work = export_work(Path(folder), options.model, options.rounds)
        ratios = _measure(work, options.turns)
    name = f"warm round of `flwr run`, `{options.model}` / the bare training"
    return publish([of_measurements(name, ratios, GOAL)], options.json)


def _measure(work: Work, turns: int) -> list[float]:
    ratios = []
    console = Console(stderr=True, highlight=False)
    for turn in range(turns):
        arms = [_app_rounds, _bare_rounds]
        if turn % 2:
            arms.reverse()
        seconds = {arm: arm(work) for arm in arms}
        both = zip(seconds[_app_rounds], seconds[_bare_rounds], strict=True)
        for number, (app, bare) in enumerate(both, 1):
            if number > 1:
                ratios.append(app / bare)
                console.print(
                    f"turn {turn + 1}, round {number}: {app:.2f} s / {bare:.2f} s"
                )
    return ratios


def _app_rounds(work: Work) -> list[float]:
    """Return the seconds of the rounds of ``flwr run``."""
    with local_superlink(PROJECT) as superlink:
        keys = {**work.keys, **KEYS}
        records = run_app(superlink, keys, nodes=CLIENTS, folder=work.folder / "runs")
    if [[*r.participants] for r in records] != [sorted(c) for c in work.participants]:
        raise RuntimeError("the app has drawn other clients than were written down")
    return [record.timing.without_evaluation for record in records]


def _bare_rounds(work: Work) -> list[float]:
    """Return the seconds of the training of the same clients."""
    with _bare_workers(work) as workers:
        return [
            _bare_round(workers, work, number, clients)
            for number, clients in enumerate(work.participants, 1)
        ]


@contextmanager
def _bare_workers(work: Work) -> Iterator[list[Connection]]:
    context = get_context("spawn")
    ends = [context.Pipe() for _ in range(WORKERS)]
    processes = [
        context.Process(target=_train_clients, args=(there, work), daemon=True)
        for _, there in ends
    ]
    for process in processes:
        process.start()
    try:
        yield [here for here, _ in ends]
    finally:
        for (here, _), process in zip(ends, processes, strict=True):
            here.send(None)
            process.join()


def _bare_round(
    workers: list[Connection], work: Work, server_round: int, clients: Sequence[int]
) -> float:
    """Return the seconds of the training of some clients, the largest first."""
    sizes = {client: len(_shard(work, client)[1]) for client in clients}
    waiting = sorted(clients, key=lambda client: -sizes[client])
    busy: list[Connection] = []
    started = time.perf_counter()
    for worker in workers:
        if waiting:
            worker.send((server_round, waiting.pop(0)))
            busy.append(worker)
    while busy:
        wait(busy)
        for worker in [one for one in busy if one.poll()]:
            worker.recv()
            if waiting:
                worker.send((server_round, waiting.pop(0)))
            else:
                busy.remove(worker)
    return time.perf_counter() - started


def _train_clients(caller: Connection, work: Work) -> None:
    config = work.config
    torch.set_num_threads(config.threads_per_client)
    keep_freed_memory()
    data = images_of(config).description
    model = model_for(config, data)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    while (order := caller.recv()) is not None:
        server_round, client = order
        pixels, labels = _shard(work, client)
        settings = TrainSettings(
            learning_rate=config.learning_rate_in(server_round),
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            batch_size=config.batch_size,
            epochs=config.local_epochs,
            seed=client_seed(config.seed, server_round, client),
        )
        model.load_state_dict(weights)
        trainer = LocalTrainer(model, settings)
        trainer.fit(data.tensor(pixels), torch.from_numpy(labels))
        caller.send(client)


def _shard(work: Work, client: int) -> Any:
    config = work.config
    node = NodeConfig(partition_id=client, num_partitions=CLIENTS)
    return client_images(config, node, images_of(config).description)


if __name__ == "__main__":
    sys.exit(main())
