"""The client side of a run: node config, training images, and client state."""
