"""The ServerApp: Flower's FedAvg, with the clients of the benchmark and a clock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save_file

from quickstart.given import initial_model, settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; write the seconds of the rounds and the final weights."""
    folder = str(context.run_config["work-dir"])
    given = settings(folder)
    rounds = given["rounds"]
    strategy = SameClients(_nodes(grid, given["clients"]), rounds)
    ends: list[float] = []

    def clock(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.perf_counter())
        return MetricRecord()

    # Called before the first round, too: that is where it begins.
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_model(folder).state_dict()),
        num_rounds=len(rounds),
        evaluate_fn=clock,
    )
    output = Path(str(context.run_config["output-dir"]))
    save_file(result.arrays.to_torch_state_dict(), output / "final.safetensors")
    seconds = [end - start for start, end in pairwise(ends)]
    (output / "seconds.json").write_text(json.dumps(seconds))


class SameClients(FedAvg):
    """FedAvg with the participants that every arm of the benchmark has."""

    def __init__(
        self, node_of: Mapping[int, int], rounds: list[dict[str, int]]
    ) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.node_of = node_of
        self.rounds = rounds

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the participants of the round."""
        config["server-round"] = server_round
        record = RecordDict(
            {self.arrayrecord_key: arrays, self.configrecord_key: config}
        )
        nodes = [self.node_of[int(client)] for client in self.rounds[server_round - 1]]
        return self._construct_messages(record, nodes, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average; a round without all of its clients would be less work."""
        arrived = list(replies)
        for reply in arrived:
            if reply.has_error():
                raise RuntimeError(f"round {server_round}: {reply.error.reason}")
        if len(arrived) < len(self.rounds[server_round - 1]):
            raise RuntimeError(f"round {server_round}: {len(arrived)} replies")
        return super().aggregate_train(server_round, arrived)


def _nodes(grid: Grid, clients: int) -> dict[int, int]:
    """Return the node of each partition: ids of nodes are drawn in every run."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(1)
    questions = [
        Message(RecordDict(), message_type=MessageType.QUERY, dst_node_id=node)
        for node in nodes
    ]
    answers = grid.send_and_receive(questions)
    return {
        int(str(answer.content.metric_records["metrics"]["partition-id"])): (
            answer.metadata.src_node_id
        )
        for answer in answers
    }
