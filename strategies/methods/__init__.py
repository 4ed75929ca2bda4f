"""The federated methods, server side: one file each."""
