"""Plots of a run: its rounds and the partition of the data."""
