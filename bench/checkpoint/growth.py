#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How checkpoints grow with parameters, ranks and tensors.

Runs saved_ranks over a grid, with ranks as threads, fp32 and Adam's moments. Prints a
table: seconds and bytes per element, and the manifest's bytes beside their bound, 0.1 %
of all bytes + 200 per tensor. Ends with 1 if a manifest is beyond it. Also ends with 1
if a checkpoint has more than 12 bytes per element plus 1 %, 24 KB per rank and 200
bytes per tensor.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/release/bin/saved_ranks"
BUILD = "cmake --build --preset release --target saved_ranks"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("."), help="folder to write to"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--most", type=int, default=10**8, help="largest number of parameters"
    )
    parser.add_argument("--program", type=Path, default=PROGRAM)
    return parser.parse_args()


def grid(most):
    """Returns (elements, ranks, tensors), one of them growing at a time."""
    middle = min(most, 10**7)
    sizes = [10**5, 10**6, 10**7, 10**8]
    yield from ((elements, 1, 100) for elements in sizes if elements <= most)
    yield from ((middle, ranks, 100) for ranks in (2, 4, 8))
    yield from ((middle, 1, tensors) for tensors in (10, 1000, 10_000))


def measured(args, case):
    elements, ranks, tensors = case
    folder = tempfile.mkdtemp(prefix="thinwire_growth_", dir=args.folder)
    try:
        sizes = [str(value) for value in (elements, tensors, ranks, args.rounds)]
        command = [str(args.program), folder, *sizes]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(run.stdout)
    finally:
        shutil.rmtree(folder)


def main():
    args = arguments()
    if not args.program.exists():
        sys.exit(f"{args.program} is missing: {BUILD}")
    print("| elements | ranks | tensors | save, ns/element | load, ns/element", end="")
    print(" | bytes/element | manifest | its bound |")
    print("|---|---|---|---|---|---|---|---|")
    is_good = True
    for case in grid(args.most):
        found = measured(args, case)
        elements, ranks, tensors = case
        most = found["bytes"] / 1000 + 200 * tensors
        all_most = 12.12 * elements + 24_000 * ranks + 200 * tensors
        is_good &= found["manifest"] <= most and found["bytes"] <= all_most
        nanoseconds = [1e9 * found[key] / elements for key in ("save", "load")]
        print(
            f"| {elements:.0e} | {ranks} | {tensors} | {nanoseconds[0]:.2f} | "
            f"{nanoseconds[1]:.2f} | {found['bytes'] / elements:.3f} | "
            f"{found['manifest']} | {most:.0f} |",
            flush=True,
        )
    return 0 if is_good else 1


sys.exit(main())
