"""The federated methods, client side: one file each."""
