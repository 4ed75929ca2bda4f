"""FLFA as a Flower application: the wiring between `strategies` and `clients`."""
