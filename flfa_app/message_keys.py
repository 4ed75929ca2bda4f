"""Keys of the messages between ServerApp and ClientApp, used by both sides."""

from __future__ import annotations

# Answer to the first query, and metrics of a train reply.
PARTITION_ID = "partition-id"
NUM_PARTITIONS = "num-partitions"
NUM_EXAMPLES = "num-examples"
LABEL_COUNTS = "label-counts"

# Config of a train message.
SERVER_ROUND = "server-round"
STATE_ROUND = "state-round"
"""The round whose client state is to be restored; 0: none."""
KEEP_SINCE = "state-keep"
"""The round of the oldest client state that the server may ask for again."""
RUN_NAME = "run-name"
"""The run whose client states on disk are meant."""
