"""``python -m benchmarks.server_memory``: what memory a round takes on the server.

The most that Python and NumPy have allocated at any time while replies with the arrays
of MobileNetV2 are checked, averaged, scored and their drift is measured; the replies
themselves, which Flower holds, not counted. With 200 participants, and with 20.
"""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from collections.abc import Sequence

import numpy as np

from benchmarks.figures import Figure, of_measurements, output_file, publish
from benchmarks.server_cost import ServerRound

__all__ = ["main"]

GOAL = "<= 1.1"
MANY, FEW = 200, 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the goal is missed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.server_memory", description=__doc__
    )
    parser.add_argument("--repetitions", type=int, default=3, help="rounds (3)")
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error("--repetitions must be 1 or more")
    rounds = {number: ServerRound(number) for number in (MANY, FEW)}
    _peak(rounds[FEW])  # whatever is allocated only once
    peaks = np.array(
        [[_peak(one) for one in rounds.values()] for _ in range(options.repetitions)]
    )
    many, few = peaks.T
    name = f"the server's memory beyond {MANY} replies of `mobilenet_v2`"
    figures = [of_measurements(f"{name} / beyond {FEW}", many / few, GOAL)]
    for number, megabytes in ((MANY, many / 1e6), (FEW, few / 1e6)):
        lower, median, upper = map(float, np.percentile(megabytes, [25, 50, 75]))
        about = f"the same, {number} replies"
        figures.append(Figure(about, median, (lower, upper), unit="MB"))
    return publish(figures, options.json)


def _peak(server_round: ServerRound) -> int:
    """Return the bytes allocated at the worst moment."""
    tracemalloc.start()
    try:
        server_round.check()
        server_round.aggregate()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    sys.exit(main())
