"""What a run leaves on disk, and the figures computed from it."""
