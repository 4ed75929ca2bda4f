"""Feedback alignment: autograd functions, layers, ablations, diagnostics."""
