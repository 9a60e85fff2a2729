# SPDX-License-Identifier: Apache-2.0
"""Runs of the studies' programs, and tables of their results with bounds."""

import argparse
import json
import math
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NONE = "–"


@dataclass(frozen=True)
class Row:
    """One line of a table: a measured value and its upper bound."""

    title: str
    value: float
    values: tuple  # the values that formed it
    bound: float | None = None
    note: str = ""  # the source of the bound, or another remark

    @classmethod
    def mean(cls, title, values, *rest):
        return cls(title, statistics.fmean(values), tuple(values), *rest)

    @classmethod
    def worst(cls, title, values, *rest):
        """Counts NaN as worse than any number."""
        worst = max(values, key=lambda v: math.inf if math.isnan(v) else v)
        return cls(title, worst, tuple(values), *rest)

    @property
    def holds(self):  # NaN satisfies no bound
        return self.bound is None or self.value <= self.bound

    def cells(self, pattern):
        bound = NONE if self.bound is None else format(self.bound, pattern)
        verdict = "" if self.bound is None else "yes" if self.holds else "**no**"
        values = ", ".join(format(value, pattern) for value in self.values)
        return (
            self.title,
            format(self.value, pattern),
            bound,
            verdict,
            values,
            self.note,
        )


def arguments(doc, program, seeds):
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument(
        "--program",
        type=Path,
        default=ROOT / "build" / "release" / "bin" / program,
        help=f"default: that of cmake --build build/release --target {program}",
    )
    return parser


def run(command):
    """Returns the lines of JSON that it prints. Ends the study if it fails."""
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_all(commands, jobs):
    """Returns the results of commands, which are a dictionary with any keys."""
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(commands, pool.map(run, commands.values()), strict=True))


def print_table(rows, pattern, value="mean", values="seeds"):
    head = ("", value, "bound", "holds", values, "")
    lines = [head, ("---",) * len(head), *(row.cells(pattern) for row in rows)]
    for line in lines:
        print("| " + " | ".join(line) + " |")


def exit_code(rows):
    missed = [row.title for row in rows if not row.holds]
    for title in missed:
        print(f"bound missed: {title}", file=sys.stderr)
    return 1 if missed else 0
