"""This app's own strategies. FLFA's are in ``flfa.strategies``: no clash."""

from .mine import FedAvgEMA

__all__ = ["FedAvgEMA"]
