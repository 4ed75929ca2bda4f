"""All keys of a run, and their values in one run.

Each key is declared once, in ``training_keys`` or ``operation_keys``; the options of a
method are declared beside its strategy class. The checks, ``[tool.flwr.app.config]`` in
``pyproject.toml`` and ``docs/configuration.md`` come from the declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flfa_app.config.checks import config_problems, split_names
from flfa_app.config.keys import keys_of
from flfa_app.config.operation_keys import OperationKeys
from flfa_app.config.training_keys import TrainingKeys
from flfa_app.errors import ConfigError


@dataclass(frozen=True)
class RunConfig(OperationKeys, TrainingKeys):
    """The config of one run; an attribute has ``_`` where its key has ``-``."""

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> RunConfig:
        """Parse a run config, which must have every key.

        Raises
        ------
        ConfigError
            With every problem of the config.
        """
        if problems := config_problems(KEYS, run_config):
            raise ConfigError("the run config cannot be used:", problems)
        values = {k: key.values.convert(k, run_config[k]) for k, key in KEYS.items()}
        general = {
            f.name: values.pop(f.name.replace("_", "-"))
            for f in fields(cls)
            if f.metadata
        }
        return cls(**general, method_options=tuple(values.items()))

    @property
    def fixed_layers(self) -> tuple[str, ...]:
        """The names in ``fixed-fa-layers``."""
        return split_names(self.fixed_fa_layers)

    def learning_rate_in(self, server_round: int) -> float:
        """Return the learning rate of a round; the first round is 1."""
        return self.learning_rate * self.lr_decay ** (server_round - 1)

    def as_keys(self) -> dict[str, Any]:
        """Return the values under their keys, in the order of the declarations."""
        options = dict(self.method_options)
        return {
            key: options[key]
            if key in options
            else getattr(self, key.replace("-", "_"))
            for key in KEYS
        }


KEYS = keys_of(fields(RunConfig))
"""Every key, by its name."""
