"""The server's part of FLFA: choose next round's layers, send their names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from .aggregation import OnePassFedAvg, Scoring
from .arguments import (
    checked_fixed,
    checked_layers,
    checked_names,
    checked_number,
)
from .cosine import layer_cosines, weight_of
from .decoding import Decoded
from .rules import RULES, Choice
from .state import ServerState

__all__ = ["FA_LAYERS", "LayerSelection"]

FA_LAYERS = "fa-layers"
"""The key of the message config under which the names of the layers travel."""

SELECTION = "layer-selection"
SCORES = ("scores", "observed_scores", "first_scores")


class LayerSelection(FedAvg):
    """Add FLFA's layer selection to FedAvg or, as the first base, to a descendant.

    ``class Mine(LayerSelection, FedAvgM)`` is FedAvgM with FLFA. Each round the layers
    are scored by the agreement of the clients' updates; the next round's train messages
    carry the names of the chosen ones under ``"fa-layers"``. That list is all that is
    added to a message, it is always there, and it is empty in round 1, when nothing has
    been scored yet (except for ``rule="fixed"``). Aggregation is the base's own. All
    clients of a round must be sent the same arrays, as Flower's strategies do. A base
    that drops replies in ``aggregate_train`` goes to the left, ``class Mine(Picky,
    LayerSelection)``: what it hands on is scored.

    Parameters
    ----------
    layers : Sequence[str]
        The candidates, in the order of the model; layer ``x`` has the array
        ``x.weight``.
    rule : str (default: "lowest")
        ``"lowest"`` or ``"highest"`` agreement; ``"auto"``: lowest if the scores of the
        first scored round are skewed to the low end, else highest (paper, supplement);
        ``"fixed"``: always ``fixed_layers``; ``"random"``; ``"none"``: plain base.
    num_layers : int (default: 1)
        How many layers to choose.
    fixed_layers : Sequence[str] (default: ())
        The layers of ``rule="fixed"``.
    observed_layers : Sequence[str] (default: ())
        Further layers to score, for the record; they are never chosen.
    selection_seed : int (default: 0)
        Of ``rule="random"``.
    **fedavg : Any
        For the base strategy.

    Attributes
    ----------
    selected : list[str]
        The layers the next train messages will carry.
    scores : dict[str, float]
        The last round's score of each candidate; empty before the first.
    observed_scores : dict[str, float]
        The same of the observed layers.
    first_scores : dict[str, float]
        The candidates' scores in the first scored round.
    """

    def __init__(
        self,
        *,
        layers: Sequence[str],
        rule: str = "lowest",
        num_layers: int = 1,
        fixed_layers: Sequence[str] = (),
        observed_layers: Sequence[str] = (),
        selection_seed: int = 0,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        self.layers = checked_layers(layers, rule)
        self.rule = rule
        self.num_layers = checked_number(num_layers, rule, len(self.layers))
        self.fixed_layers = checked_fixed(fixed_layers, rule, self.layers)
        observed = checked_names("observed_layers", observed_layers)
        self.observed_layers = [name for name in observed if name not in self.layers]
        if not isinstance(selection_seed, int) or selection_seed < 0:
            raise ValueError(
                f"selection_seed must be 0 or more, not {selection_seed!r}"
            )
        self.selection_seed = selection_seed
        self.selected: list[str] = list(self.fixed_layers)
        self.scores: dict[str, float] = {}
        self.observed_scores: dict[str, float] = {}
        self.first_scores: dict[str, float] = {}
        self.__sent: ArrayRecord | None = None

    def summary(self) -> None:
        """Log summary configuration of the strategy."""
        log(INFO, "\t├──> FLFA layer selection:")
        log(INFO, "\t│\t├── Rule: %s (%d)", self.rule, self.num_layers)
        log(INFO, "\t│\t└── Candidates: %s", ", ".join(self.layers))
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        key = self.configrecord_key
        for message in messages:
            # A new record, made of what the base has made of it: the names cannot get
            # lost, and stay out of records that the base or the caller use again.
            settings: dict[str, Any] = dict(message.content.config_records.get(key, {}))
            names = {FA_LAYERS: self.selected[:]}
            message.content[key] = ConfigRecord({**settings, **names})
        if messages:
            # Not `arrays`: a base may send others (a look-ahead, say).
            self.__sent = messages[0].content.array_records[self.arrayrecord_key]
            self._check_arrays(self.__sent)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as the base does; score the layers and choose the next ones."""
        replies = list(replies)
        # Taken before the base aggregates: some of Flower's empty the replies.
        layers = [*self.layers, *self.observed_layers]
        weights = list(map(weight_of, layers))
        replied = [self._arrays_of(r, weights) for r in replies if not r.has_error()]
        scoring = Scoring(self.__sent or {}, replied)
        aggregated = self.__aggregated(server_round, replies, scoring)
        if replied:
            if self.__sent is None:
                raise RuntimeError("configure_train must come before aggregate_train")
            scores = _all_scores(scoring, layers)
            self.scores = {layer: scores[layer] for layer in self.layers}
            self.observed_scores = {x: scores[x] for x in self.observed_layers}
            if not self.first_scores and any(map(math.isfinite, self.scores.values())):
                self.first_scores = self.scores
            self.selected = self._select(server_round)
            if self.selected:
                names = ", ".join(self.selected)
                log(INFO, "FLFA layers for the next round: %s", names)
        return aggregated

    def server_state(self) -> ServerState:
        """Return what the next round depends on, the base's part included."""
        base = getattr(super(), "server_state", None)
        arrays, values = base() if base else ServerState({}, {})
        scores = {name: _without_nan(getattr(self, name)) for name in SCORES}
        own = {"selected": self.selected[:], **scores}
        return ServerState(arrays, {**values, SELECTION: own})

    def load_server_state(self, state: ServerState) -> None:
        """Take up what :meth:`server_state` has returned, in a new strategy."""
        if base := getattr(super(), "load_server_state", None):
            base(state)
        own = state.values[SELECTION]
        self.selected = list(own["selected"])
        for name in SCORES:
            setattr(self, name, _with_nan(own[name]))

    def __aggregated(
        self, server_round: int, replies: list[Message], scoring: Scoring
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as the base does, which may score the layers on the way."""
        if not isinstance(self, OnePassFedAvg):
            return super().aggregate_train(server_round, replies)
        with self.answering(scoring):
            return super().aggregate_train(server_round, replies)

    def _arrays_of(self, reply: Message, names: Iterable[str]) -> dict[str, Array]:
        """Return those of a reply's arrays that have these names, still encoded."""
        records = reply.content.array_records
        if self.arrayrecord_key in records:
            record = records[self.arrayrecord_key]
        elif len(records) == 1:
            (record,) = records.values()
        else:
            # The base decides whether such a reply is an error; it has no update.
            record = ArrayRecord()
        return {name: record[name] for name in names if name in record}

    def _select(self, server_round: int) -> list[str]:
        choice = Choice(
            num_layers=self.num_layers,
            server_round=server_round,
            first_scores=self.first_scores,
            fixed_layers=self.fixed_layers,
            seed=self.selection_seed,
        )
        return RULES[self.rule](self.scores, choice)

    def _check_arrays(self, arrays: Mapping[str, Any]) -> None:
        scored = [*self.layers, *self.observed_layers]
        missing = [layer for layer in scored if weight_of(layer) not in arrays]
        if missing:
            raise ValueError(
                f"no array {', '.join(map(weight_of, missing))} among those sent; "
                f"layers must be named as in the model: {', '.join(arrays)}"
            )


def _all_scores(scoring: Scoring, layers: Sequence[str]) -> dict[str, float]:
    """Return the scores of the layers; compute those that the base has not."""
    known = scoring.scores
    scores = {x: known[weight_of(x)] for x in layers if weight_of(x) in known}
    missing = [layer for layer in layers if layer not in scores]
    replied = map(Decoded, scoring.replied)
    return scores | layer_cosines(Decoded(scoring.sent), replied, missing)


def _without_nan(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores as JSON can say them: nan, of no client, is null."""
    return {layer: z if math.isfinite(z) else None for layer, z in scores.items()}


def _with_nan(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {layer: math.nan if z is None else z for layer, z in scores.items()}
