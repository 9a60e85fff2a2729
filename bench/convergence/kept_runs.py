# SPDX-License-Identifier: Apache-2.0
"""Runs of a study, one JSON file each, which are kept from one call to the next."""

import json
import os
import subprocess
import sys

from results import Spread

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def file_of(folder, row, seed):
    return folder / row.name / f"seed_{seed}.json"


def run(command, row, seed, folder, environment=None):
    """Runs a program whose last line on stdout is the result, unless there is one.
    Returns whether there is a result now."""
    result = file_of(folder, row, seed)
    if result.exists():
        return True
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
        )
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if "Error: " in line]
        why, failed = (errors or lines)[-1], done.returncode != 0
    except OSError as error:
        why, failed = str(error), True
    if failed:
        print(f"{row.name}, seed {seed}: failed: {why}", file=sys.stderr, flush=True)
        return False
    text = done.stdout.strip().splitlines()[-1]
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
