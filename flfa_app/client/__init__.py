"""The client side of a run: its node config and its state."""
