"""Grids of runs from one file, their tables and their reports."""
