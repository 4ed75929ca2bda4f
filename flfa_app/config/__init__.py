"""The run config: which keys there are, what they may be, and the checks."""

from flfa_app.config.keys import Key
from flfa_app.config.operation_keys import AUTO
from flfa_app.config.run_config import KEYS, RunConfig

__all__ = ["AUTO", "KEYS", "Key", "RunConfig"]
