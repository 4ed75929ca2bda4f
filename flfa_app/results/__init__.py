"""Results of a run: its records, metrics, files, checkpoints and plots."""
