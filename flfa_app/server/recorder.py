"""What is kept of a run while it goes on: lines, checkpoints, the best model."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import Array, ArrayRecord
from flwr.common.logger import log

from flfa_app.config import RunConfig
from flfa_app.results.checkpoint import Checkpoint, CheckpointError, Checkpoints
from flfa_app.results.records import RoundRecord
from flfa_app.results.run_directory import RunDirectory
from flfa_app.server.client_history import Participation
from flfa_app.server.stopping import reason_to_stop
from strategies import ServerState
from strategies.decoding import decode

__all__ = ["Recorder"]


class Recorder:
    """Keeps the rounds of a run, and says when there have been enough.

    Parameters
    ----------
    config : RunConfig
        The run.
    run : RunDirectory
        Where everything goes; it holds the rounds so far.
    checkpoints : Checkpoints
        The run's.
    about : Mapping[str, Any]
        What a checkpoint tells of the run.
    participation : Participation, optional
        Is told which checkpoints there are.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        checkpoints: Checkpoints,
        about: Mapping[str, Any],
        participation: Participation | None,
    ) -> None:
        self.config = config
        self.run = run
        self.checkpoints = checkpoints
        self.about = {"run-config": config.as_keys(), **about}
        self.participation = participation
        self.stopped = self._reason_to_stop()
        self.best_arrays: ArrayRecord | None = self._best_before()
        self._tell_oldest_checkpoint()

    def done(
        self, record: RoundRecord, arrays: ArrayRecord, state: ServerState
    ) -> bool:
        """Keep a round and what comes after it; return whether it was the last."""
        server_round = record.server_round
        self.run.add_round(record)
        is_best = self.run.best_round == server_round
        if is_best:
            self.best_arrays = arrays
        self.stopped = self._reason_to_stop()
        if self.stopped:
            log(INFO, "Stopping early: %s", self.stopped)
        ends = bool(self.stopped) or server_round == self.config.num_server_rounds
        every = self.config.checkpoint_every
        if every and (is_best or ends or server_round % every == 0):
            self._write_checkpoint(server_round, arrays, state)
        return ends

    def how_to_go_on(self) -> str:
        """Say what is left of a run that has failed."""
        rounds = self.checkpoints.rounds()
        if not rounds:
            return "There is no checkpoint to go on from."
        return (
            f"The last good checkpoint is {self.checkpoints.path(rounds[-1])}; go on "
            f"from there with --run-config \"resume='{self.run.path}'\""
        )

    def _reason_to_stop(self) -> str | None:
        return reason_to_stop(
            self.run.records,
            patience=self.config.patience,
            target_accuracy=self.config.target_accuracy,
        )

    def _write_checkpoint(
        self, server_round: int, arrays: ArrayRecord, state: ServerState
    ) -> None:
        checkpoint = Checkpoint(
            server_round,
            {name: decode(array) for name, array in arrays.items()},
            state.arrays,
            state.values,
            self.run.records,
            self.about,
        )
        self.checkpoints.write(checkpoint, self.run.best_round)
        self._tell_oldest_checkpoint()

    def _tell_oldest_checkpoint(self) -> None:
        rounds = self.checkpoints.rounds()
        # Without any, a run cannot be gone on with, and nothing old is needed.
        if self.participation is not None and rounds:
            # The best may be much older, and nobody goes on from it.
            self.participation.oldest_checkpoint = rounds[
                -self.config.keep_checkpoints :
            ][0]

    def _best_before(self) -> ArrayRecord | None:
        """Return the best model of the rounds before a resumption.

        If it is lost, the best of which there is a good checkpoint takes its place.
        """
        there = self.checkpoints.rounds()
        while best_round := self.run.best_round:
            try:
                model = self.checkpoints.read(best_round).model
            except CheckpointError as problem:
                # Of most rounds that are not the best none has been kept.
                if best_round in there or not self.run.lost_models:
                    log(
                        WARNING,
                        "%s; the model of round %d is lost and cannot be the best one",
                        problem,
                        best_round,
                    )
                self.run.lost_models.add(best_round)
                continue
            if self.run.lost_models:
                log(
                    WARNING,
                    "the best model that is left is that of round %d: best-round and "
                    "best-accuracy will be its own, or those of a better one to come",
                    best_round,
                )
            return ArrayRecord({name: Array(values) for name, values in model.items()})
        return None
