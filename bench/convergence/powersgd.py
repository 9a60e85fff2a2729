#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what hooks cost in loss: torch DDP with PowerSGD or ddp_hook against exact
DDP.

Trains the demo's model on the demo's text over gloo, with both ranks on this machine
(powersgd_run.py). PowerSGD begins after 2 steps, as in bench/network, or after the
exact steps with which 1-bit Adam begins. Runs that are complete in the folder are kept.
Writes table.md beside them, and prints the table.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from results import read_results, read_run
from rows import Row
from show import markdown
from study import LAUNCH, ROOT, novels

RUN = Path(__file__).resolve().parent / "powersgd_run.py"
RANKS = 2
EXACT = "ddp"
STARTS = {"early": "from step 3 on", "warm": "after the warm-up"}
ROWS = [
    Row(EXACT, "torch DDP, Adam", "", EXACT),
    *(
        Row(f"hook{bits}", f"thinwire.ddp_hook, {bits} bits", "", EXACT)
        for bits in (8, 4)
    ),
    *(
        Row(f"rank{rank}_{start}", f"PowerSGD rank {rank}, {words}", "", EXACT)
        for start, words in STARTS.items()
        for rank in (1, 4)
    ),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--data", nargs="+", help="text; default: Jane Austen's novels")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "powersgd")
    parser.add_argument(
        "--python", default=sys.executable, help="Python that has torch (default: this)"
    )
    return parser.parse_args()


def train(given, data, row, seed, out):
    """Runs it once. Returns True if it succeeded, now or earlier."""
    if read_run(out):
        return True
    command = [given.python, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(RANKS), str(RUN), "--way", row.name]
    command += ["--steps", str(given.steps), "--seed", str(seed), "--out", str(out)]
    done = subprocess.run(
        [*command, "--data", *data],
        stdout=subprocess.DEVNULL,
        check=False,
        env={**os.environ, **LAUNCH},
    )
    run = read_run(out)
    said = f"{run[0]:.4f} nats per byte" if run else f"failed: {done.returncode}"
    print(f"{row.name}, seed {seed}: {said}", file=sys.stderr, flush=True)
    return run is not None


def main():
    given = arguments()
    folder = given.out / f"{given.steps}_steps_{RANKS}_ranks"
    data = given.data or novels()
    succeeded = [
        train(given, data, row, seed, folder / row.name / f"seed_{seed}")
        for row in ROWS
        for seed in given.seeds
    ]
    table = markdown(read_results(folder, ROWS, given.seeds))
    (folder / "table.md").write_text(table)
    print(table, end="")
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
