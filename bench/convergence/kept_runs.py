# SPDX-License-Identifier: Apache-2.0
"""Rows of a study, runs that are kept from one call to the next, and the table of their
results."""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
NONE = "–"


@dataclass(frozen=True)
class Row:
    """One way to train."""

    name: str  # also its folder
    title: str
    flags: str  # or the optimizer of a configuration file
    dense: str  # the exact optimizer, whose bytes are compared
    against: str = ""  # the row that it is compared with; empty for `dense`
    own: dict = field(default_factory=dict)  # more keys of a configuration file

    @property
    def baseline(self):
        return self.against or self.dense


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; nan if there is none."""

    values: tuple

    @property
    def mean(self):
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self):
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def is_noise(self, most):
        """Returns whether a difference over paired seeds is at most two standard
        errors, and at most `most`. Returns None for fewer than three seeds."""
        if len(self.values) < 3:
            return None
        error = self.deviation / math.sqrt(len(self.values))
        return abs(self.mean) <= min(2 * error, most)

    def text(self, pattern):
        if math.isnan(self.mean):
            return NONE
        text = format(self.mean, pattern)
        if math.isnan(self.deviation):
            return text
        return f"{text} ± {format(self.deviation, pattern.lstrip('+'))}"


class Results:
    """The results that exist, by name of the row and seed."""

    def __init__(self, rows, seeds, read):
        self.rows, self.seeds = rows, seeds
        found = {(row.name, seed): read(row, seed) for row in rows for seed in seeds}
        self.runs = {key: run for key, run in found.items() if run is not None}
        self.titles = {row.name: row.title for row in rows}

    def seeds_of(self, *names):
        """Returns the seeds that all these rows have run."""
        return [s for s in self.seeds if all((n, s) in self.runs for n in names)]

    def spread(self, name, value):
        return Spread(tuple(value(self.runs[name, s]) for s in self.seeds_of(name)))

    def difference(self, row, value):
        """Returns the difference to the baseline of the same seeds; empty between a row
        and itself."""
        both = self.seeds_of(row.name, row.baseline)
        if row.name == row.baseline:
            both = []
        return Spread(
            tuple(
                value(self.runs[row.name, s]) - value(self.runs[row.baseline, s])
                for s in both
            )
        )

    def compared(self, row, value, pattern):
        """Returns cells: title, n, value, difference, and the title of the baseline."""
        own, gap = self.spread(row.name, value), self.difference(row, value)
        return (
            *(row.title, str(len(own.values)), own.text(pattern)),
            gap.text(f"+{pattern}"),
            self.titles[row.baseline] if gap.values else NONE,
        )

    def noise(self, row, value, most):
        verdict = self.difference(row, value).is_noise(most)
        return {None: NONE, True: "yes", False: "**no**"}[verdict]

    def exchanged(self, row, pattern):
        """Returns cells: bytes, the exact optimizer's over them, and rounds."""
        sent, dense = (
            self.spread(name, lambda run: run["bytes_sent"]).mean
            for name in (row.name, row.dense)
        )
        saving = dense / sent if sent else math.nan
        rounds = self.spread(row.name, lambda run: run["rounds"]).mean
        return (
            f"{format(sent / 1e6, pattern)} MB",
            NONE if math.isnan(saving) else f"{saving:.1f}×",
            f"{rounds:.2f}",
        )

    def beyond_noise(self, value, most):
        """Says which rows differ by more than seed noise, and returns them."""
        missed = [
            row.name
            for row in self.rows
            if self.difference(row, value).is_noise(most) is False
        ]
        if missed:
            print(f"more than seed noise: {', '.join(missed)}", file=sys.stderr)
        return missed


def arguments(doc, steps, out):
    """Returns a parser of what all studies have; `out` is a folder below out/."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="run only matching rows"
    )
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / out)
    return parser


def parse(parser, rows):
    given = parser.parse_args()
    if given.list:
        for row in rows:
            if re.search(given.only, row.name):
                print(f"{row.name:26} {row.flags}")
        sys.exit(0)
    return given


def lines_of(script):
    """Returns the lines that a script prints, which are paths of data."""
    done = subprocess.run(
        [ROOT / "scripts" / script], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def launch(command, row, seed, environment=None):
    """Runs a command and returns its output. If it fails, prints the reason in a line,
    and returns None.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
        )
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        errors = [e for e in lines if "Error: " in e or e.startswith("train_gpt: ")]
        why = (errors or lines)[-1]
    except OSError as error:
        why = str(error)
    print(f"{row.name}, seed {seed}: failed: {why}", file=sys.stderr, flush=True)
    return None


def run(command, row, seed, result, environment=None):
    """Runs a program whose last line on stdout is the result, unless this file has one.
    Returns whether there is a result now."""
    if result.exists():
        return True
    output = launch(command, row, seed, environment)
    if output is None:
        return False
    text = output.strip().splitlines()[-1]
    fresh = result.with_suffix(".fresh")
    result.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(text + "\n")
    fresh.rename(result)
    print(f"{row.name}, seed {seed}: {text}", file=sys.stderr, flush=True)
    return True


def read(result):
    return json.loads(result.read_text()) if result.exists() else None


def conduct(given, rows, folder, study):
    """Makes the missing runs, in the order of seeds, and writes and prints the table.
    `study` has the functions train, read and cells, and COLUMNS.
    Returns the results, and whether all runs succeeded."""
    chosen = [row for row in rows if re.search(given.only, row.name)]
    with ThreadPoolExecutor(given.jobs) as pool:
        made = [
            pool.submit(study.train, row, seed)
            for seed in given.seeds
            for row in chosen
        ]
        succeeded = [run.result() for run in made]
    results = Results(rows, given.seeds, study.read)
    ran = [row for row in rows if results.seeds_of(row.name)]
    lines = [study.COLUMNS, ("---",) * len(study.COLUMNS)]
    lines += [study.cells(results, row) for row in ran]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table)
    print(table, end="")
    return results, all(succeeded)
