"""Numbers of a grid: what its runs measured, compared with baselines and the paper."""
