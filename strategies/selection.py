"""FLFA's layer selection: score the layers, choose next round's, send their names."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from .aggregation import Aggregate, aggregate, measure
from .cosine import weight_name
from .rules import RULES, RuleContext, check_arguments, check_names
from .state import ServerState

__all__ = ["FA_LAYERS", "LayerSelection"]

FA_LAYERS = "fa-layers"
"""The key of the message config whose value is the list of layer names."""

STATE_KEY = "layer-selection"
SCORE_ATTRIBUTES = ("scores", "observed_scores", "first_scores")


class LayerSelection(FedAvg):
    """Add FLFA's layer selection to FedAvg or, as the first base, to a descendant.

    ``class Mine(LayerSelection, FedAvgM)`` is FedAvgM with FLFA. Each round the layers
    are scored by the agreement of the clients' updates. The next round's train messages
    carry the names of the chosen layers under ``"fa-layers"``. That list is all that is
    added to a message. It is always there, and it is empty in round 1, when no layer is
    scored yet (except for ``rule="fixed"``). Aggregation is the base's own. All clients
    of a round must be sent the same arrays, as Flower's strategies do.

    The order of the bases, from left to right: a base that drops replies in
    ``aggregate_train``; this class, which scores the replies it gets; the base that
    aggregates; and :class:`~.aggregation.OnePassFedAvg`, if the aggregating base builds
    on FedAvg's mean. With it the layers are scored while the replies are averaged;
    without it, or if a base to the right changes the replies, they are read once more.

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
        The seed of ``rule="random"``.
    drift_parameters : Collection[str] (default: ())
        The arrays whose drift is measured: the model's parameters.
    **fedavg : Any
        The arguments of the base strategy.

    Attributes
    ----------
    selected : list[str]
        The layers that the next train messages carry.
    scores : dict[str, float]
        The last round's score of each candidate; empty before the first.
    observed_scores : dict[str, float]
        The last round's score of each observed layer.
    first_scores : dict[str, float]
        The candidates' scores in the first scored round.
    last_aggregate : Aggregate or None
        The scores of all layers and the drift of the last round's replies; None if
        there was no valid reply.
    """

    drift_parameters: Collection[str] = ()
    last_aggregate: Aggregate | None = None

    def __init__(
        self,
        *,
        layers: Sequence[str],
        rule: str = "lowest",
        num_layers: int = 1,
        fixed_layers: Sequence[str] = (),
        observed_layers: Sequence[str] = (),
        selection_seed: int = 0,
        drift_parameters: Collection[str] = (),
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        self.layers, self.fixed_layers = check_arguments(
            rule, layers, num_layers, fixed_layers
        )
        self.rule = rule
        self.num_layers = num_layers
        observed = check_names("observed_layers", observed_layers)
        self.observed_layers = [name for name in observed if name not in self.layers]
        if not isinstance(selection_seed, int) or selection_seed < 0:
            raise ValueError(
                f"selection_seed must be 0 or more, not {selection_seed!r}"
            )
        self.selection_seed = selection_seed
        self.drift_parameters = check_names("drift_parameters", drift_parameters)
        self.selected: list[str] = list(self.fixed_layers)
        self.scores: dict[str, float] = {}
        self.observed_scores: dict[str, float] = {}
        self.first_scores: dict[str, float] = {}
        self.__sent: ArrayRecord | None = None
        self.__received: dict[str, list[Array | None]] = {}

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
            # A new record, made from the base's: the base cannot lose the names, and
            # they do not get into a record that the base or the caller uses again.
            settings: dict[str, Any] = dict(message.content.config_records.get(key, {}))
            layer_names = {FA_LAYERS: self.selected[:]}
            message.content[key] = ConfigRecord({**settings, **layer_names})
        if messages:
            # Not `arrays`: a base may send other arrays (a look-ahead, for example).
            self.__sent = messages[0].content.array_records[self.arrayrecord_key]
            names = map(weight_name, self.__scored_layers())
            if missing := [name for name in names if name not in self.__sent]:
                raise ValueError(
                    f"no array {', '.join(missing)} among those sent; "
                    f"layers must be named as in the model: {', '.join(self.__sent)}"
                )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as the base does; score the layers and choose the next ones."""
        replies = list(replies)
        valid = [reply for reply in replies if not reply.has_error()]
        if valid and self.__sent is None:
            raise RuntimeError("configure_train must come before aggregate_train")
        self.last_aggregate = None
        # Collected before the base aggregates: some of Flower's strategies empty the
        # replies.
        self.__received = self.__collect(valid)
        try:
            aggregated = super().aggregate_train(server_round, replies)
            if valid and self.last_aggregate is None:
                self.last_aggregate = Aggregate({}, *self.__measure())
        finally:
            self.__received = {}  # or a whole round's replies would stay in memory
        if self.last_aggregate is not None:
            self.__select(server_round, self.last_aggregate.scores)
        return aggregated

    def aggregate_arrays(
        self, replies: Sequence[Mapping[str, Array]], weights: Sequence[float]
    ) -> Aggregate:
        """Aggregate for ``OnePassFedAvg``, which calls this if it is among the bases.

        Scores and drift are those of the replies that reached this class. A base in
        between may hand on other replies or arrays; then only the mean is theirs.
        """
        if self.__are_received(replies):
            return aggregate(
                self.__sent or {},
                replies,
                weights,
                self.__scored_layers(),
                self.drift_parameters,
            )
        mean = aggregate({}, replies, weights, (), ()).mean
        return Aggregate(mean, *self.__measure())

    def server_state(self) -> ServerState:
        """Return what the next round depends on, the base's part included."""
        base = getattr(super(), "server_state", None)
        arrays, values = base() if base else ServerState({}, {})
        selection: dict[str, Any] = {"selected": self.selected[:]}
        for name in SCORE_ATTRIBUTES:
            scores = getattr(self, name).items()  # JSON has no nan
            selection[name] = {k: z if math.isfinite(z) else None for k, z in scores}
        return ServerState(arrays, {**values, STATE_KEY: selection})

    def load_server_state(self, state: ServerState) -> None:
        """Restore the state that :meth:`server_state` returned, in a new strategy."""
        if base := getattr(super(), "load_server_state", None):
            base(state)
        selection = state.values[STATE_KEY]
        self.selected = list(selection["selected"])
        for name in SCORE_ATTRIBUTES:
            scores = selection[name].items()
            setattr(self, name, {k: math.nan if z is None else z for k, z in scores})

    def __scored_layers(self) -> list[str]:
        return [*self.layers, *self.observed_layers]

    def __collect(self, replies: Sequence[Message]) -> dict[str, list[Array | None]]:
        """Return, for each array to measure, the still encoded array of each reply."""
        records = [self.__record_of(reply) for reply in replies]
        names = [*map(weight_name, self.__scored_layers()), *self.drift_parameters]
        return {name: [one.get(name) for one in records] for name in names}

    def __record_of(self, reply: Message) -> ArrayRecord:
        records = reply.content.array_records
        if len(records) == 1:
            return next(iter(records.values()))
        # Whether a reply without the record is an error is the base's decision.
        return records.get(self.arrayrecord_key, ArrayRecord())

    def __are_received(self, replies: Sequence[Mapping[str, Array]]) -> bool:
        """Whether these are the very arrays that were received, of every reply."""
        return all(
            len(arrays) == len(replies)
            and all(one.get(name) is a for one, a in zip(replies, arrays, strict=True))
            for name, arrays in self.__received.items()
        )

    def __measure(self) -> tuple[dict[str, float], float]:
        """Return the scores and the drift of the replies that reached this class."""
        names = list(self.__received)
        replies = [
            {k: a for k, a in zip(names, arrays, strict=True) if a is not None}
            for arrays in zip(*self.__received.values(), strict=True)
        ]
        layers = self.__scored_layers()
        return measure(self.__sent or {}, replies, layers, self.drift_parameters)

    def __select(self, server_round: int, scores: Mapping[str, float]) -> None:
        """Store the scores and choose the next round's layers."""
        self.scores = {layer: scores[layer] for layer in self.layers}
        self.observed_scores = {x: scores[x] for x in self.observed_layers}
        if not self.first_scores and any(map(math.isfinite, self.scores.values())):
            self.first_scores = self.scores
        context = RuleContext(
            num_layers=self.num_layers,
            server_round=server_round,
            first_scores=self.first_scores,
            fixed_layers=self.fixed_layers,
            seed=self.selection_seed,
        )
        self.selected = RULES[self.rule](self.scores, context)
        if self.selected:
            log(INFO, "FLFA layers for the next round: %s", ", ".join(self.selected))
