"""The methods: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from clients import (
    FedACGTrainer,
    FedDynTrainer,
    FedLCTrainer,
    FedProxTrainer,
    FedRSTrainer,
    FedSOLTrainer,
    LocalTrainer,
    MOONTrainer,
    ScaffoldTrainer,
)
from strategies import (
    FLFAMOON,
    FLFAFedACG,
    FLFAFedAvg,
    FLFAFedDyn,
    FLFAFedLC,
    FLFAFedProx,
    FLFAFedRS,
    FLFAFedSOL,
    FLFAScaffold,
    FLFAServerMomentum,
    LayerSelection,
)

__all__ = ["ALGORITHMS", "Method"]


class Method(NamedTuple):
    """The two sides of a federated method.

    ``keys`` names the run-config key of each of the strategy's own arguments; what the
    clients need to know travels in the messages. ``needs`` are arguments the app knows:
    ``parameters`` (their names) and ``num_clients``. ``neutral`` are the keys that make
    the method FedAvg, bit for bit, if there are any.
    """

    strategy: type[LayerSelection]
    trainer: type[LocalTrainer] = LocalTrainer
    keys: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    neutral: Mapping[str, Any] | None = None

    @property
    def keeps_client_state(self) -> bool:
        """Whether clients keep something between rounds."""
        return self.trainer.state is not LocalTrainer.state

    def build_strategy(
        self, config: Mapping[str, Any], known: Mapping[str, Any], **selection: Any
    ) -> LayerSelection:
        """Build the server side from the run config and what the app knows."""
        own = {argument: config[key] for argument, key in self.keys.items()}
        own |= {argument: known[argument] for argument in self.needs}
        return self.strategy(**own, **selection)


PARAMETERS = ("parameters",)
PER_CLIENT = ("parameters", "num_clients")

_MOMENTUM = {
    "form": "fedavgm-form",
    "server_momentum": "fedavgm-momentum",
    "server_learning_rate": "fedavgm-learning-rate",
}
_MOON = {"mu": "moon-mu", "temperature": "moon-temperature"}
_SOL = {"rho": "fedsol-rho", "variant": "fedsol-variant", "part": "fedsol-part"}
_RS = {"alpha": "fedrs-alpha", "variant": "fedrs-variant"}
_ACG = {"lookahead": "fedacg-lambda", "beta": "fedacg-beta"}
_SCAFFOLD = {"global_learning_rate": "scaffold-learning-rate"}

ALGORITHMS: dict[str, Method] = {
    "fedavg": Method(FLFAFedAvg, neutral={}),
    "fedprox": Method(
        FLFAFedProx,
        FedProxTrainer,
        {"proximal_mu": "fedprox-mu"},
        neutral={"fedprox-mu": 0.0},
    ),
    "fedavgm": Method(
        FLFAServerMomentum,
        keys=_MOMENTUM,
        needs=PARAMETERS,
        neutral={"fedavgm-momentum": 0.0},
    ),
    "moon": Method(FLFAMOON, MOONTrainer, _MOON, neutral={"moon-mu": 0.0}),
    "fedsol": Method(FLFAFedSOL, FedSOLTrainer, _SOL, neutral={"fedsol-rho": 0.0}),
    "fedrs": Method(FLFAFedRS, FedRSTrainer, _RS, neutral={"fedrs-alpha": 1.0}),
    "fedlc": Method(
        FLFAFedLC, FedLCTrainer, {"tau": "fedlc-tau"}, neutral={"fedlc-tau": 0.0}
    ),
    "fedacg": Method(
        FLFAFedACG,
        FedACGTrainer,
        _ACG,
        PARAMETERS,
        neutral={"fedacg-lambda": 0.0, "fedacg-beta": 0.0},
    ),
    "feddyn": Method(FLFAFedDyn, FedDynTrainer, {"alpha": "feddyn-alpha"}, PER_CLIENT),
    "scaffold": Method(FLFAScaffold, ScaffoldTrainer, _SCAFFOLD, PER_CLIENT),
}
