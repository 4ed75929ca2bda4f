"""The server's part of FLFA: choose next round's layers, send their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from typing import Any

import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from .cosine import layer_cosines, weight_of
from .rules import RULES, Choice

__all__ = ["FA_LAYERS", "LayerSelection"]

FA_LAYERS = "fa-layers"
"""The key of the message config under which the names of the layers travel."""


class LayerSelection(FedAvg):
    """Add FLFA's layer selection to FedAvg or, as the first base, to a descendant.

    ``class Mine(LayerSelection, FedAvgM)`` is FedAvgM with FLFA. Each round the layers
    are scored by the agreement of the clients' updates; the next round's train messages
    carry the names of the chosen ones under ``"fa-layers"``. That list is all that is
    added to a message, it is always there, and it is empty in round 1, when nothing has
    been scored yet (except for ``rule="fixed"``). Aggregation is the base's own.

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
    seed : int (default: 0)
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
        seed: int = 0,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        self.layers = _checked_layers(layers, rule)
        self.rule = rule
        self.num_layers = _checked_number(num_layers, rule, len(self.layers))
        self.fixed_layers = _checked_fixed(fixed_layers, rule, self.layers)
        self.observed_layers = [x for x in observed_layers if x not in self.layers]
        self.seed = seed
        self.selected: list[str] = list(self.fixed_layers)
        self.scores: dict[str, float] = {}
        self.observed_scores: dict[str, float] = {}
        self.first_scores: dict[str, float] = {}
        self._sent: ArrayRecord | None = None

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
        # The caller's config is used again next round: leave it as it is.
        config = ConfigRecord(dict(config))
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            # Written into what the base has made of it, so that it cannot get lost.
            content = message.content
            if self.configrecord_key not in content:
                content[self.configrecord_key] = ConfigRecord()
            content.config_records[self.configrecord_key][FA_LAYERS] = self.selected[:]
        if messages:
            # Not `arrays`: a base may send others (a look-ahead, say).
            self._sent = messages[0].content.array_records[self.arrayrecord_key]
            self._check_arrays(self._sent)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as the base does; score the layers and choose the next ones."""
        replies = list(replies)
        aggregated = super().aggregate_train(server_round, replies)
        valid = [reply for reply in replies if not reply.has_error()]
        if valid:
            if self._sent is None:
                raise RuntimeError("configure_train must come before aggregate_train")
            scores = layer_cosines(
                _Lazy(self._sent),
                map(_replied_arrays, valid),
                [*self.layers, *self.observed_layers],
            )
            self.scores = {layer: scores[layer] for layer in self.layers}
            self.observed_scores = {x: scores[x] for x in self.observed_layers}
            self.first_scores = self.first_scores or self.scores
            self.selected = self._select(server_round)
            if self.selected:
                names = ", ".join(self.selected)
                log(INFO, "FLFA layers for the next round: %s", names)
        return aggregated

    def _select(self, server_round: int) -> list[str]:
        choice = Choice(
            num_layers=self.num_layers,
            server_round=server_round,
            first_scores=self.first_scores,
            fixed_layers=self.fixed_layers,
            seed=self.seed,
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


class _Lazy(Mapping[str, npt.NDArray[Any]]):
    """A record as a mapping of NumPy arrays, each decoded when it is asked for."""

    def __init__(self, record: ArrayRecord) -> None:
        self._record = record

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._record[name].numpy()

    def __iter__(self) -> Any:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


def _replied_arrays(reply: Message) -> _Lazy:
    # The base has checked that there is exactly one.
    return _Lazy(next(iter(reply.content.array_records.values())))


def _checked_layers(layers: Sequence[str], rule: str) -> list[str]:
    if rule not in RULES:
        raise ValueError(f"rule {rule!r} is unknown; allowed: {', '.join(RULES)}")
    if isinstance(layers, str):
        raise ValueError(f"layers must be a sequence of names, not {layers!r}")
    names = list(layers)
    if len(set(names)) < len(names):
        raise ValueError(f"layers name a layer twice: {', '.join(names)}")
    if not names and rule != "none":
        raise ValueError(f"rule {rule!r} has no layers to choose from; use rule='none'")
    return names


def _checked_number(num_layers: int, rule: str, candidates: int) -> int:
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, not {num_layers}")
    if rule not in ("none", "fixed") and num_layers > candidates:
        raise ValueError(
            f"num_layers is {num_layers}, but there are {candidates} candidate layers"
        )
    return num_layers


def _checked_fixed(
    fixed_layers: Sequence[str], rule: str, candidates: Sequence[str]
) -> tuple[str, ...]:
    if isinstance(fixed_layers, str):
        raise ValueError(f"fixed_layers must be a sequence, not {fixed_layers!r}")
    if (rule == "fixed") != bool(fixed_layers):
        raise ValueError(
            "fixed_layers and rule='fixed' go together; "
            f"got rule={rule!r}, fixed_layers={list(fixed_layers)!r}"
        )
    if unknown := [name for name in fixed_layers if name not in candidates]:
        raise ValueError(
            f"fixed_layers {', '.join(unknown)} are no candidates; "
            f"candidates: {', '.join(candidates)}"
        )
    return tuple(fixed_layers)
