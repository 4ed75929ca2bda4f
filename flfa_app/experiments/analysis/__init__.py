"""From the runs of a grid to numbers."""
