#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what low-bit exchanges cost a pre-trained model.

Runs examples/python/finetune_encoder.py in several ways, on two ranks. Compares
accuracy on held-out texts, and loss on rare tokens. Runs that are complete in the
folder are kept. Runs are in the order of seeds, so the study can be interrupted and
widened. Ends with 1 if a run fails, or if a mean difference in accuracy is more than
seed noise.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import kept_runs
from kept_runs import ROOT
from show import NONE, as_markdown, with_deviation

PROGRAM = ROOT / "examples" / "python" / "finetune_encoder.py"
NOISE = 1.0  # points of accuracy
COLUMNS = (
    *("", "n", "accuracy, %", "to DDP, points", "seed noise", "loss, nats", "to DDP"),
    *("late tokens", "seldom tokens", "rows moved: early", "late", "sent per rank"),
)
RARE = ("late", "seldom")
MOVED = ("early", "late")


@dataclass(frozen=True)
class Row:
    name: str  # also its folder
    title: str
    flags: str


DDP = Row("ddp", "torch DDP, AdamW", "--optimizer ddp")
ROWS = (
    DDP,
    Row("onebit_adam", "1-bit Adam", "--optimizer onebit_adam"),
    Row("zero_4_4", "ZeRO-2, AdamW, 4 bits", "--optimizer zero_4_4"),
    Row("zero_8_8", "ZeRO-2, AdamW, 8 bits", "--optimizer zero_8_8"),
    Row("zero_one_adam", "0/1 Adam", "--optimizer zero_one_adam"),
    Row("adamw", "Thinwire AdamW (exact)", "--optimizer adamw"),
    Row("lean_onebit_adam", "Lean 1-bit Adam", "--optimizer lean_onebit_adam"),
    Row(
        "exact_embeddings",
        "1-bit Adam, embeddings exact",
        "--optimizer onebit_adam --exact-embeddings",
    ),
)


def arguments():
    parser = kept_runs.arguments(__doc__, 120, "encoder")
    parser.add_argument(
        "--longest", type=int, default=32, help="largest number of tokens of a text"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--data", help="folder; default: that of get_fortunes")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="Python that has thinwire and the model",
    )
    parser.add_argument("--program", type=Path, default=PROGRAM)
    return parser.parse_args()


def train(given, data, row, seed, folder):
    """Runs it once. Returns True if it succeeded, now or earlier."""
    command = [given.python, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", given.ranks, given.program, *row.flags.split()]
    command += ["--steps", given.steps, "--seed", seed, "--data", data]
    command += ["--longest", given.longest]
    return kept_runs.run(command, row, seed, folder, {"HF_HUB_OFFLINE": "1"})


def accuracy(run):
    return run["test"]["all"]["accuracy"]


def loss(of):
    return lambda run: run["test"][of]["loss"]


def moved(of):
    return lambda run: run["moved"][of]


def lines_of(runs, seeds):
    """Yields a line of the table for every row that has run. Compares rows of
    embeddings by the ratio of mean lengths."""
    for row in ROWS:

        def spread(value, row=row):
            return kept_runs.spread(runs, row, seeds, value)

        def gap(value, row=row):
            return kept_runs.difference(runs, row, DDP.name, seeds, value)

        if not spread(accuracy).values:
            continue
        verdict = gap(accuracy).is_noise(NOISE)
        paired = [s for s in seeds if {(row.name, s), (DDP.name, s)} <= runs.keys()]
        base = {of: kept_runs.spread(runs, DDP, paired, moved(of)) for of in MOVED}
        yield (
            *(row.title, str(len(spread(accuracy).values))),
            with_deviation(spread(accuracy), ".2f"),
            with_deviation(gap(accuracy), "+.2f"),
            {None: NONE, True: "yes", False: "**no**"}[verdict],
            with_deviation(spread(loss("all")), ".3f"),
            *(with_deviation(gap(loss(of)), "+.3f") for of in ("all", *RARE)),
            *(f"{spread(moved(of)).mean / base[of].mean:.2f}×" for of in MOVED),
            f"{spread(lambda run: run['bytes_sent']).mean / 1e6:.0f} MB",
        )


def main():
    given = arguments()
    rows = [row for row in ROWS if re.search(given.only, row.name)]
    if given.list:
        print(*(row.name for row in rows), sep="\n")
        return 0
    folder = (
        given.out / f"{given.steps}_steps_{given.ranks}_ranks_{given.longest}_tokens"
    )
    data = given.data or kept_runs.lines_of("get_fortunes")[0]
    succeeded = [
        train(given, data, row, seed, folder) for seed in given.seeds for row in rows
    ]
    runs = kept_runs.read(folder, ROWS, given.seeds)
    table = as_markdown(COLUMNS, lines_of(runs, given.seeds))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table)
    print(table, end="")
    missed = [
        row.name
        for row in ROWS
        if kept_runs.difference(runs, row, DDP.name, given.seeds, accuracy).is_noise(
            NOISE
        )
        is False
    ]
    if missed:
        print(f"more than seed noise: {', '.join(missed)}", file=sys.stderr)
    return 0 if all(succeeded) and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
