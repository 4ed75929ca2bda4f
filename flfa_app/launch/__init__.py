"""Start Flower, run the app, follow it to its end."""
