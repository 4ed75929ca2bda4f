"""The client side of a run: node config and client state."""
