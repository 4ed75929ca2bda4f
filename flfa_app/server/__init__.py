"""The server side of a run: the loop over rounds and all it needs."""
