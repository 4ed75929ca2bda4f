"""A small model, its clients, and one round of it up to the replies."""

from __future__ import annotations

import numpy as np
from flwr.app import ConfigRecord

from tests.unit.strategies.fakes import FakeGrid, ndarrays, noisy_client, record

NAMES = ("a.weight", "a.bias", "b.weight", "count")


def weights():
    rng = np.random.default_rng(3)
    return record(
        {
            "a.weight": rng.normal(size=(6, 5)).astype(np.float32),
            "a.bias": rng.normal(size=6).astype(np.float32),
            "b.weight": rng.normal(size=(2, 3, 2)).astype(np.float16),
            "count": np.array(4),
        }
    )


def trained_replies(strategy, nodes=5, client=noisy_client, server_round=1):
    """Return the replies of one round, sorted by node."""
    grid = FakeGrid(nodes, client)
    strategy.min_train_nodes = strategy.min_available_nodes = nodes
    messages = strategy.configure_train(server_round, weights(), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def values_of(replies):
    return [ndarrays(reply.content["arrays"]) for reply in replies]
