"""FLFA as a Flower application: the wiring between `strategies` and `clients`."""

import sys
from pathlib import Path

# Those two stand beside this package. In a simulation Flower's workers look for them in
# the folder where the SuperLink was started first, and other projects have a `clients`.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
