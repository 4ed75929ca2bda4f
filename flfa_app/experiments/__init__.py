"""Many runs from one file: grids of experiments, their tables and reports."""
