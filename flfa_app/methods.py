"""The methods that ``algorithm`` can name: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from strategies import LayerSelection
from strategies.methods.fedacg import FLFAFedACG
from strategies.methods.fedavg import FLFAFedAvg
from strategies.methods.feddyn import FLFAFedDyn
from strategies.methods.fedlc import FLFAFedLC
from strategies.methods.fedprox import FLFAFedProx
from strategies.methods.fedrs import FLFAFedRS
from strategies.methods.fedsol import FLFAFedSOL
from strategies.methods.momentum import FLFAServerMomentum
from strategies.methods.moon import FLFAMOON
from strategies.methods.scaffold import FLFAScaffold
from strategies.options import Option, options_of

if TYPE_CHECKING:
    from clients import LocalTrainer


class Method(NamedTuple):
    """The two sides of a federated method."""

    strategy: type[LayerSelection]
    """The server side. It declares the method's display name and its options."""
    trainer_path: str = "clients.trainer:LocalTrainer"
    """Module and class of the client side. It is imported when it is needed: commands
    that only check a config need not wait for torch."""

    @property
    def display_name(self) -> str:
        """The method's name as papers spell it."""
        name: str = getattr(self.strategy, "display_name", self.strategy.__name__)
        return name

    @property
    def options(self) -> tuple[Option[Any], ...]:
        """The options of the strategy class."""
        return options_of(self.strategy)

    @property
    def fedavg_keys(self) -> dict[str, Any]:
        """The keys that make the method FedAvg, bit for bit; empty if none do."""
        return {x.key: x.fedavg for x in self.options if x.fedavg is not None}

    @property
    def trainer(self) -> type[LocalTrainer]:
        """The client side."""
        trainer: type[LocalTrainer] = resolve_name(self.trainer_path)
        return trainer

    @property
    def keeps_client_state(self) -> bool:
        """Whether clients keep state between rounds."""
        from clients import LocalTrainer

        return self.trainer.state is not LocalTrainer.state

    def build_strategy(
        self, run_config: Mapping[str, Any], derived: Mapping[str, Any], **common: Any
    ) -> LayerSelection:
        """Build the server side from the options in the run config.

        ``derived`` has ``parameters`` (their names) and ``num_clients``; the strategy
        gets those of them that it has arguments for. ``common`` are arguments of
        :class:`~strategies.LayerSelection` and FedAvg.
        """
        arguments = {x.argument: run_config[x.key] for x in self.options}
        for name in getattr(self.strategy, "derived_arguments", ()):
            arguments[name] = derived[name]
        return self.strategy(**arguments, **common)


ALGORITHMS: dict[str, Method] = {
    "fedavg": Method(FLFAFedAvg),
    "fedprox": Method(FLFAFedProx, "clients.methods.fedprox:FedProxTrainer"),
    "fedavgm": Method(FLFAServerMomentum),
    "moon": Method(FLFAMOON, "clients.methods.moon:MOONTrainer"),
    "fedsol": Method(FLFAFedSOL, "clients.methods.fedsol:FedSOLTrainer"),
    "fedrs": Method(FLFAFedRS, "clients.methods.fedrs:FedRSTrainer"),
    "fedlc": Method(FLFAFedLC, "clients.methods.fedlc:FedLCTrainer"),
    "fedacg": Method(FLFAFedACG, "clients.methods.fedacg:FedACGTrainer"),
    "feddyn": Method(FLFAFedDyn, "clients.methods.feddyn:FedDynTrainer"),
    "scaffold": Method(FLFAScaffold, "clients.methods.scaffold:ScaffoldTrainer"),
}
