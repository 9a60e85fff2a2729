# SPDX-License-Identifier: Apache-2.0
"""Runs of a study, one JSON file each, which are kept from one call to the next."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from results import Spread

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def arguments(doc, steps, out):
    """Returns a parser of what all studies have; `out` is a folder below out/."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="run only matching rows"
    )
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / out)
    return parser


def lines_of(script):
    """Returns the lines that a script prints, which are paths of data."""
    done = subprocess.run(
        [ROOT / "scripts" / script], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def launch(command, environment):
    """Runs it; returns what it prints, and why it failed, in a line, or nothing."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **ENVIRONMENT, **environment},
        )
    except OSError as error:
        return "", str(error)
    if done.returncode == 0:
        return done.stdout, ""
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    errors = [e for e in lines if "Error: " in e or e.startswith("train_gpt: ")]
    return "", (errors or lines)[-1]


def file_of(folder, row, seed):
    return folder / row.name / f"seed_{seed}.json"


def run(command, row, seed, folder, environment=None):
    """Runs a program whose last line on stdout is the result, unless there is one.
    Returns whether there is a result now."""
    result = file_of(folder, row, seed)
    if result.exists():
        return True
    output, why = launch(command, environment or {})
    if why:
        print(f"{row.name}, seed {seed}: failed: {why}", file=sys.stderr, flush=True)
        return False
    text = output.strip().splitlines()[-1]
    fresh = result.with_suffix(".fresh")
    result.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(text + "\n")
    fresh.rename(result)
    print(f"{row.name}, seed {seed}: {text}", file=sys.stderr, flush=True)
    return True


def read(folder, rows, seeds):
    """Returns the existing results, by name of the row and seed."""
    files = {
        (row.name, seed): file_of(folder, row, seed) for row in rows for seed in seeds
    }
    return {
        key: json.loads(file.read_text())
        for key, file in files.items()
        if file.exists()
    }


def spread(runs, row, seeds, value):
    """Returns `value(result)` over the seeds that the row has run."""
    return Spread(
        tuple(value(runs[row.name, s]) for s in seeds if (row.name, s) in runs)
    )


def difference(runs, row, baseline, seeds, value):
    """Returns the difference over the seeds that both have run; empty between a row and
    itself."""
    both = [s for s in seeds if (row.name, s) in runs and (baseline, s) in runs]
    if row.name == baseline:
        both = []
    return Spread(
        tuple(value(runs[row.name, s]) - value(runs[baseline, s]) for s in both)
    )
