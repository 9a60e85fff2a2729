#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what low-bit exchanges cost a pre-trained model.

Runs examples/python/finetune_encoder.py in several ways, on two ranks. Compares
accuracy on held-out texts, and loss on rare tokens. Runs that are complete in the
folder are kept. Runs are in the order of seeds, so the study can be interrupted and
widened. Ends with 1 if a run fails, or if a mean difference in accuracy is more than
seed noise.
"""

import sys
from operator import itemgetter
from pathlib import Path

import kept_runs
from kept_runs import ROOT, Row

PROGRAM = ROOT / "examples" / "python" / "finetune_encoder.py"
NOISE = 1.0  # points of accuracy
COLUMNS = (
    *("", "n", "accuracy, %", "to DDP, points", "seed noise", "loss, nats", "to DDP"),
    *("late tokens", "seldom tokens", "rows moved: early", "late", "sent per rank"),
)
RARE = ("late", "seldom")
MOVED = ("early", "late")


ROWS = tuple(
    Row(name, title, flags, "ddp")
    for name, title, flags in (
        ("ddp", "torch DDP, AdamW", "--optimizer ddp"),
        ("onebit_adam", "1-bit Adam", "--optimizer onebit_adam"),
        ("zero_4_4", "ZeRO-2, AdamW, 4 bits", "--optimizer zero_4_4"),
        ("zero_8_8", "ZeRO-2, AdamW, 8 bits", "--optimizer zero_8_8"),
        ("zero_one_adam", "0/1 Adam", "--optimizer zero_one_adam"),
        ("adamw", "Thinwire AdamW (exact)", "--optimizer adamw"),
        ("lean_onebit_adam", "Lean 1-bit Adam", "--optimizer lean_onebit_adam"),
        ("hook_8", "DDP with ddp_hook, 8 bits", "--optimizer hook_8"),
        ("hook_4", "DDP with ddp_hook, 4 bits", "--optimizer hook_4"),
        ("low_rank_8", "DDP with ddp_hook, low rank 8", "--optimizer low_rank_8"),
        (
            *("plain_embeddings", "the same, embeddings in 8 bits"),
            "--optimizer low_rank_8 --plain-embeddings",
        ),
        (
            *("exact_embeddings", "1-bit Adam, embeddings exact"),
            "--optimizer onebit_adam --exact-embeddings",
        ),
    )
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
    return kept_runs.parse(parser, ROWS)


def accuracy(run):
    return run["test"]["all"]["accuracy"]


def loss(of):
    return lambda run: run["test"][of]["loss"]


class Study:
    COLUMNS = COLUMNS

    def __init__(self, given, folder):
        self.given, self.folder = given, folder
        self.data = given.data or kept_runs.lines_of("get_fortunes")[0]

    def result(self, row, seed):
        return self.folder / row.name / f"seed_{seed}.json"

    def train(self, row, seed):
        """Runs it once. Returns True if it succeeded, now or earlier."""
        given = self.given
        command = [given.python, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", given.ranks, given.program, *row.flags.split()]
        command += ["--steps", given.steps, "--seed", seed, "--data", self.data]
        command += ["--longest", given.longest]
        offline = {"HF_HUB_OFFLINE": "1"}
        return kept_runs.run(command, row, seed, self.result(row, seed), offline)

    def read(self, row, seed):
        return kept_runs.read(self.result(row, seed))

    def cells(self, results, row):
        """Returns a line of the table. Rows of embeddings are compared by the ratio of
        mean lengths."""

        def gap(of):
            return results.difference(row, loss(of)).text("+.3f")

        def moved(of):
            ddp = [
                results.runs["ddp", seed]["moved"][of]
                for seed in results.seeds_of(row.name, "ddp")
            ]
            own = results.spread(row.name, lambda run: run["moved"][of])
            return f"{own.mean / kept_runs.Spread(tuple(ddp)).mean:.2f}×"

        sent = results.spread(row.name, itemgetter("bytes_sent")).mean
        return (
            *results.compared(row, accuracy, ".2f")[:4],
            results.noise(row, accuracy, NOISE),
            results.spread(row.name, loss("all")).text(".3f"),
            *map(gap, ("all", *RARE)),
            *map(moved, MOVED),
            f"{sent / 1e6:.0f} MB",
        )


def main():
    given = arguments()
    sizes = f"{given.steps}_steps_{given.ranks}_ranks_{given.longest}_tokens"
    folder = given.out / sizes
    results, succeeded = kept_runs.conduct(given, ROWS, folder, Study(given, folder))
    return 0 if succeeded and not results.beyond_noise(accuracy, NOISE) else 1


if __name__ == "__main__":
    sys.exit(main())
