#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what inactive elements cost on a text whose letters change half-way.

From step 201 of 400 on, letters are bytes above 127 in half of the windows; the 1-bit
optimizers freeze at step 100. The loss is that on held-out text, half of it changed, in
nats per byte. "Masked" is the same run, but elements without a gradient before the
freeze never get one. Ends with 1 if a mean misses its bound.
"""

import sys

from bounds import ROOT, Row, arguments, exit_code, print_table, run_all

RUNS = {
    ("adam", "changing"): "Adam",
    ("onebit_adam", "changing"): "1-bit Adam",
    ("onebit_adam", "masked"): "1-bit Adam, masked",
    ("lamb", "changing"): "LAMB",
    ("onebit_lamb", "changing"): "1-bit LAMB",
    ("onebit_lamb", "masked"): "1-bit LAMB, masked",
    ("onebit_adam", "plain"): "1-bit Adam, text that does not change",
    ("onebit_lamb", "plain"): "1-bit LAMB, text that does not change",
}
# The run that each is compared with, and how far above it the loss may be.
BOUNDS = {
    ("onebit_adam", "changing"): (("onebit_adam", "masked"), -0.04),
    ("onebit_lamb", "changing"): (("lamb", "changing"), 0.02),
}
# Means of seeds 1, 2, 3 from before inactive elements were activated.
BEFORE = {
    ("onebit_adam", "plain"): 1.8137,
    ("onebit_lamb", "plain"): 1.7852,
}
PLAIN = 0.01


def bound_of(run, losses):
    if run in BOUNDS:
        other, distance = BOUNDS[run]
        mean = Row.mean("", losses[other]).value
        return mean + distance, f"{RUNS[other]} {distance:+}"
    if run in BEFORE:
        return BEFORE[run] + PLAIN, f"{BEFORE[run]} {PLAIN:+}"
    return None, ""


def main():
    parser = arguments(__doc__, "changing_text", [1, 2, 3])
    parser.add_argument(
        "--data",
        default=ROOT / "out" / "data" / "persuasion.txt",
        help="text files; default: those of scripts/get_austen",
    )
    args = parser.parse_args()
    results = run_all(
        {
            (run, seed): (args.program, *run, seed, args.data)
            for run in RUNS
            for seed in args.seeds
        },
        args.jobs,
    )
    losses = {
        run: [results[run, seed][0]["loss"] for seed in args.seeds] for run in RUNS
    }
    rows = [
        Row.mean(title, losses[run], *bound_of(run, losses))
        for run, title in RUNS.items()
    ]
    print_table(rows, ".4f")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
