"""FLFA as a Flower app: it connects the packages `strategies` and `clients`."""

import sys
from pathlib import Path

# Both packages are next to this one. In a simulation, Flower's workers search the
# folder where the SuperLink was started first, which may hold another `clients`.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
