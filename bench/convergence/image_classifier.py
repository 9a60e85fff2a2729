#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what low-bit exchanges cost on pictures: a small ResNet with batch
normalisation.

It trains on Fashion-MNIST with four ranks, and is compared by accuracy on the test
pictures. Runs that are complete in the folder are kept, so the study can be interrupted
and widened. Ends with 1 if a run fails, if ranks end with different parameters, or if a
mean difference is more than seed noise.
"""

import json
import math
import re
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path

import kept_runs
from image_rows import all_rows, config
from kept_runs import ROOT
from show import NONE, as_markdown, with_deviation

NOISE = 0.5  # points of accuracy
COLUMNS = (
    *("", "n", "accuracy, %", "difference, points", "to", "seed noise"),
    *("loss, nats", "sent per rank", "fewer bytes", "rounds per step"),
)


def arguments():
    parser = kept_runs.arguments(__doc__, 1000, "pictures")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--data", help="folder; default: that of get_fashion_mnist")
    parser.add_argument(
        "--program",
        type=Path,
        default=ROOT / "build" / "release" / "bin" / "image_classifier",
    )
    return parser.parse_args()


def train(given, data, row, seed, folder):
    """Runs it once. Returns True if it succeeded, now or earlier."""
    (folder / row.name).mkdir(parents=True, exist_ok=True)
    file = folder / row.name / "config.json"
    file.write_text(json.dumps(config(row, given.steps), indent=1) + "\n")
    command = [given.program, file, data, given.steps, seed]
    return kept_runs.run(command, row, seed, folder)


def lines_of(runs, rows, seeds):
    """Returns a line of the table for every row that has run."""
    titles = {row.name: row.title for row in rows}
    for row in rows:
        own = [runs[row.name, seed] for seed in seeds if (row.name, seed) in runs]
        if not own:
            continue

        def spread(key, row=row):
            return kept_runs.spread(runs, row, seeds, itemgetter(key))

        dense = [runs[row.dense, s] for s in seeds if (row.dense, s) in runs]
        sent = spread("bytes_sent").mean
        saving = (
            statistics.fmean(run["bytes_sent"] for run in dense) / sent
            if dense
            else math.nan
        )
        gap = kept_runs.difference(
            runs, row, row.baseline, seeds, itemgetter("accuracy")
        )
        verdict = {None: NONE, True: "yes", False: "**no**"}[gap.is_noise(NOISE)]
        yield (
            *(row.title, str(len(own)), with_deviation(spread("accuracy"), ".2f")),
            with_deviation(gap, "+.2f"),
            titles[row.baseline] if gap.values else NONE,
            verdict,
            with_deviation(spread("loss"), ".3f"),
            f"{sent / 1e6:.1f} MB",
            NONE if math.isnan(saving) else f"{saving:.1f}×",
            f"{spread('rounds').mean:.2f}",
        )


def main():
    given = arguments()
    rows = [row for row in all_rows() if re.search(given.only, row.name)]
    if given.list:
        print(*(row.name for row in rows), sep="\n")
        return 0
    folder = given.out / f"{given.steps}_steps"
    data = given.data or kept_runs.lines_of("get_fashion_mnist")[0]
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [
            pool.submit(train, given, data, row, seed, folder)
            for seed in given.seeds
            for row in rows
        ]
        succeeded = [run.result() for run in runs]
    found = kept_runs.read(folder, all_rows(), given.seeds)
    table = as_markdown(COLUMNS, lines_of(found, all_rows(), given.seeds))
    (folder / "table.md").write_text(table)
    print(table, end="")
    unequal = [key for key, run in found.items() if not run["equal"]]
    if unequal:
        print(f"ranks ended with different parameters: {unequal}", file=sys.stderr)
    missed = [
        row.name
        for row in all_rows()
        if kept_runs.difference(
            found, row, row.baseline, given.seeds, itemgetter("accuracy")
        ).is_noise(NOISE)
        is False
    ]
    if missed:
        print(f"more than seed noise: {', '.join(missed)}", file=sys.stderr)
    return 0 if all(succeeded) and not unequal and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
