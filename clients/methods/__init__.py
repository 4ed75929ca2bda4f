"""The client side of the federated methods: one file for each, plus shared helpers."""
