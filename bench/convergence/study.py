#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo's model in many ways and prints what each costs in loss.

Runs that are complete in the folder are kept, so the study can be interrupted and
widened. Writes table.md beside them, and prints it.
"""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kept_runs
from kept_runs import ROOT
from results import read_results, read_run
from rows import all_rows
from show import markdown

# There are more ranks than cores. No rank is bound to a core, and waiting ranks yield.
LAUNCH = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def arguments():
    parser = kept_runs.arguments(__doc__, 500, "convergence")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--data", nargs="+", help="text; default: Jane Austen's novels")
    parser.add_argument(
        "--program", type=Path, default=ROOT / "build" / "release" / "bin" / "train_gpt"
    )
    return parser.parse_args()


def train(given, data, row, seed, out):
    """Runs it once. Returns True if it succeeded, now or earlier."""
    if read_run(out):
        return True
    command = [
        "mpirun",
        "-np",
        str(given.ranks),
        str(given.program),
        *row.flags.split(),
    ]
    command += ["--steps", str(given.steps), "--seed", str(seed), "--quiet"]
    command += ["--out", str(out), "--data", *data]
    _, why = kept_runs.launch(command, LAUNCH)
    if why:
        print(f"{row.name}, seed {seed}: failed: {why}", file=sys.stderr, flush=True)
        return False
    summary = json.loads((out / "summary.json").read_text())
    print(
        f"{row.name}, seed {seed}: {summary['final_val_loss']:.4f} nats per byte, "
        f"{summary['seconds']:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return True


def main():
    given = arguments()
    rows = [row for row in all_rows() if re.search(given.only, row.name)]
    if given.list:
        for row in rows:
            print(f"{row.name:26} {row.flags}")
        return 0
    folder = given.out / f"{given.steps}_steps_{given.ranks}_ranks"
    data = given.data or kept_runs.lines_of("get_austen")
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [
            pool.submit(
                train, given, data, row, seed, folder / row.name / f"seed_{seed}"
            )
            for seed in given.seeds
            for row in rows
        ]
        succeeded = [run.result() for run in runs]
    results = read_results(folder, all_rows(), given.seeds)
    table = markdown(results)
    (folder / "table.md").write_text(table)
    print(table, end="")
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
