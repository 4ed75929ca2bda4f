"""Flower's import warns (typer uses a deprecated name of click): not our warning."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.serverapp.strategy  # noqa: F401
