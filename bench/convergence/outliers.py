#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what one large finite gradient does to its neighbours.

One element of one rank's gradient is large in one step, before the freeze (at 95 of
100) or after it, at 150. Prints the mean distance of the other 1023 elements of the
block from their optimum after 1000 steps, for every size of the outlier. Ends with 1 if
any misses the bound, is not a number, or any element jumps.
"""

import sys

from bounds import Row, arguments, exit_code, print_table, run_all

TITLES = {
    "adam": "Adam",
    "onebit_adam": "1-bit Adam",
    "zero_one_adam": "0/1 Adam",
    "lamb": "LAMB",
    "onebit_lamb": "1-bit LAMB",
}
SIZES = ("0", "1", "1e1", "1e2", "1e3", "1e4", "1e6", "1e8", "1e20", "1e25", "1e38")
# Freeze, step of the outlier, and the name of the case.
CASES = (
    (100, 95, "before the freeze"),
    (100, 150, "after the freeze"),
    # The square of 1e20 is not finite in fp32. 0/1 Adam, which divides by the variance
    # from its first step on, freezes at once.
    (5, 3, "freeze at 5, outlier at 3"),
)
# Largest distance, for every size.
MOST = {
    ("onebit_adam", "before the freeze"): 0.40,
    ("onebit_adam", "after the freeze"): 0.40,
}
# A step may be at most this many times as long as the longest without an outlier.
JUMP = 4.0


def rows_of(optimizer, when, runs):
    title = f"{TITLES[optimizer]}, {when}"
    distances = [float(run["distance"]) for run in runs]
    steps = [float(run["longest_step"]) for run in runs]
    times = [step / steps[0] for step in steps]
    bound = MOST.get((optimizer, when))
    return (
        Row.worst(f"{title}: distance", distances, bound),
        Row.worst(f"{title}: longest step", times, JUMP, "times that without one"),
    )


def main():
    args = arguments(__doc__, "outliers", [0]).parse_args()
    results = run_all(
        {
            (optimizer, when): (args.program, optimizer, freeze, step, *SIZES)
            for freeze, step, when in CASES
            for optimizer in TITLES
        },
        args.jobs,
    )
    rows = [row for key, runs in results.items() for row in rows_of(*key, runs)]
    print_table(rows, ".3g", "worst", f"sizes {', '.join(SIZES)}")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
