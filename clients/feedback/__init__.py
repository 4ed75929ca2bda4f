"""Feedback alignment: autograd functions, aligned layers, ablations, diagnostics."""
