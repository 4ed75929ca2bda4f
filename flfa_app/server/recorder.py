"""Recording of a run: metrics, checkpoints, the best model, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import Array, ArrayRecord
from flwr.common.logger import log

from flfa_app.arrays import to_tensors
from flfa_app.config import RunConfig
from flfa_app.results.checkpoint import Checkpoint, CheckpointError, Checkpoints
from flfa_app.results.records import RoundRecord
from flfa_app.results.run_directory import RunDirectory
from flfa_app.server.client_history import ClientHistory
from strategies import LayerSelection, ServerState
from strategies.decoding import decode
from strategies.rules import RULES, RuleContext

__all__ = ["Recorder", "reason_to_stop"]


class Recorder:
    """Records the rounds of a run and decides which one is the last.

    Parameters
    ----------
    config : RunConfig
        The config of the run.
    run : RunDirectory
        The directory of the results; it holds the records of the rounds so far.
    checkpoints : Checkpoints
        The checkpoints of the run.
    metadata : Mapping[str, Any]
        What a checkpoint tells of the run besides its config.
    history : ClientHistory, optional
        Learns which checkpoints exist.

    Attributes
    ----------
    stop_reason : str, optional
        Why the run ends before its last round.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        checkpoints: Checkpoints,
        metadata: Mapping[str, Any],
        history: ClientHistory | None,
    ) -> None:
        self._config = config
        self._run = run
        self._checkpoints = checkpoints
        self._metadata = {"run-config": config.as_keys(), **metadata}
        self._history = history
        self.stop_reason = self._reason_to_stop()
        self._best_arrays = self._restore_best_model()
        self._update_oldest_checkpoint()

    def record_round(
        self, record: RoundRecord, arrays: ArrayRecord, state: ServerState
    ) -> bool:
        """Record a round and the state after it; return whether it was the last."""
        server_round = record.server_round
        self._run.add_round(record)
        is_best = self._run.best_round == server_round
        if is_best:
            self._best_arrays = arrays
        self.stop_reason = self._reason_to_stop()
        if self.stop_reason:
            log(INFO, "Stopping early: %s", self.stop_reason)
        num_rounds = self._config.num_server_rounds
        is_last = bool(self.stop_reason) or server_round == num_rounds
        every = self._config.checkpoint_every
        if every and (is_best or is_last or server_round % every == 0):
            self._write_checkpoint(server_round, arrays, state)
        return is_last

    def finish(
        self, arrays: ArrayRecord, strategy: LayerSelection, seconds: float
    ) -> dict[str, Any]:
        """Write the files of a complete run; return its summary.

        Parameters
        ----------
        arrays : ArrayRecord
            The final model.
        strategy : LayerSelection
            The strategy of the run.
        seconds : float
            How long this process took.
        """
        run = self._run
        run.save_model(to_tensors(arrays))
        if self._best_arrays is not None:
            run.save_model(to_tensors(self._best_arrays), "best_model.safetensors")
        if self._config.pictures:
            run.plot_rounds(self._config)
        return run.write_summary(
            no_op_rounds=num_no_op_rounds(self._config, strategy.layers, run.records),
            stopped_early=self.stop_reason,
            seconds=round(seconds, 3),
        )

    def how_to_resume(self) -> str:
        """Return how a failed run can be resumed."""
        rounds = self._checkpoints.rounds()
        if not rounds:
            return "There is no checkpoint to resume from."
        return (
            f"The last good checkpoint is {self._checkpoints.path(rounds[-1])}; resume "
            f"from it with --run-config \"resume='{self._run.path}'\""
        )

    def _reason_to_stop(self) -> str | None:
        return reason_to_stop(
            self._run.records,
            patience=self._config.patience,
            target_accuracy=self._config.target_accuracy,
        )

    def _write_checkpoint(
        self, server_round: int, arrays: ArrayRecord, state: ServerState
    ) -> None:
        checkpoint = Checkpoint(
            server_round,
            {name: decode(array) for name, array in arrays.items()},
            state.arrays,
            state.values,
            self._run.records,
            self._metadata,
        )
        self._checkpoints.write(checkpoint, self._run.best_round)
        self._update_oldest_checkpoint()

    def _update_oldest_checkpoint(self) -> None:
        rounds = self._checkpoints.rounds()
        # Without a checkpoint the run cannot be resumed, so old client states are not
        # needed. The best round's may be much older, but no run is resumed from it.
        if self._history is not None and rounds:
            last_rounds = rounds[-self._config.keep_checkpoints :]
            self._history.oldest_checkpoint = last_rounds[0]

    def _restore_best_model(self) -> ArrayRecord | None:
        """Return the best model of the rounds before a resumption, if there are any.

        If its checkpoint is lost, the best one with a good checkpoint is used instead.
        """
        saved_rounds = self._checkpoints.rounds()
        while best_round := self._run.best_round:
            try:
                model = self._checkpoints.read(best_round).model
            except CheckpointError as error:
                # Most rounds that were never the best have no checkpoint at all.
                if best_round in saved_rounds or not self._run.lost_models:
                    log(
                        WARNING,
                        "%s; the model of round %d is lost and cannot be the best one",
                        error,
                        best_round,
                    )
                self._run.lost_models.add(best_round)
                continue
            if self._run.lost_models:
                log(
                    WARNING,
                    "the best remaining model is that of round %d: best-round and "
                    "best-accuracy refer to it, or to a better one still to come",
                    best_round,
                )
            return ArrayRecord({name: Array(values) for name, values in model.items()})
        return None


def reason_to_stop(
    records: Sequence[RoundRecord], *, patience: int, target_accuracy: float
) -> str | None:
    """Return why a run stops early after these rounds, or None if it continues.

    Parameters
    ----------
    records : Sequence[RoundRecord]
        The rounds so far. Some may not have been evaluated.
    patience : int
        Stop after this many rounds without a higher accuracy; 0: never.
    target_accuracy : float
        Stop when this accuracy is reached; 0: never.
    """
    accuracies = {
        record.server_round: record.evaluation.accuracy
        for record in records
        if record.evaluation is not None
    }
    if not accuracies:
        return None
    last = max(accuracies)
    if 0 < target_accuracy <= accuracies[last]:
        return (
            f"round {last} has reached target-accuracy, {target_accuracy:g}: "
            f"{accuracies[last]:.4f}"
        )
    best = max(accuracies, key=accuracies.__getitem__)  # the first of equal ones
    if 0 < patience <= last - best:
        return (
            f"no better accuracy than {accuracies[best]:.4f} of round {best} in "
            f"{last - best} rounds (patience)"
        )
    return None


def num_no_op_rounds(
    config: RunConfig, candidates: Sequence[str], records: Sequence[RoundRecord]
) -> int | None:
    """Count the rounds whose scores favour only layers where FA has no effect.

    With ``candidates = "all"``, the paper's rule, those rounds would have been plain
    backpropagation. None if the rule does not choose by score, or does so among all.
    """
    if config.flfa not in ("lowest", "highest") or config.candidates == "all":
        return None
    context = RuleContext(num_layers=config.num_fa_layers)
    chosen = [RULES[config.flfa](record.scores, context) for record in records]
    return sum(not set(layers) & set(candidates) for layers in chosen)
