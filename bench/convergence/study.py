#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo's model in many ways and prints what each costs in loss.

Runs that are complete in the folder are kept, so the study can be interrupted and
widened. Writes table.md beside them, and prints it.
"""

import json
import sys
from operator import itemgetter
from pathlib import Path

import kept_runs
from kept_runs import ROOT, Row

COLUMNS = (
    *("", "n", "loss", "gap", "to", "sent per rank", "fewer bytes", "rounds per step"),
)
# There are more ranks than cores. No rank is bound to a core, and waiting ranks yield.
LAUNCH = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# Title and flags of Adam's kind.
WAYS = {
    "adam": ("Adam", "--optimizer adam"),
    "onebit_adam": ("1-bit Adam", "--optimizer onebit_adam"),
    "zero_one_adam": (
        "0/1 Adam",
        "--optimizer zero_one_adam --set optimizer.params.local_step_clipper=4",
    ),
    "lean_onebit_adam": ("Lean 1-bit Adam", "--optimizer lean_onebit_adam"),
    "zero_4_4": (
        "ZeRO-2, Adam, 4 bits",
        (
            "--optimizer adam --set zero_optimization.stage=2"
            " --set zero_bits_up=4 --set zero_bits_down=4"
        ),
    ),
}

# Ends of a row's name and title, and more flags.
PLAIN = ("", "", "")
LAGGED = ("_lagged", ", lagged clipping", " --set lagged_clipping=true")
WARM = [
    (f"_warm{bits}", f", warm-up over {bits} bits", f" --set warmup_bits={bits}")
    for bits in (8, 4)
]
# Two emulated hosts of two ranks each.
BY_HOST = (
    "_by_host",
    ", by host",
    " --set hierarchy=by_host --set ranks_per_host=2",
)


def adam_row(lr, way, change=PLAIN, against=""):
    """Returns a row; `against` is a way, and empty for Adam."""
    (title, flags), (end, more_title, more) = WAYS[way], change
    return Row(
        f"{way}{end}_{lr}",
        f"{title}{more_title}, lr {lr}",
        f"{flags}{more} --set optimizer.params.lr={lr}",
        f"adam_{lr}",
        f"{against}_{lr}" if against else "",
    )


def lamb_row(lr, way, change=PLAIN, against=""):
    """Returns a row of LAMB or 1-bit LAMB; `against` is a row, and empty for LAMB."""
    end, more_title, more = change
    return Row(
        f"{way}_clip{end}",
        f"{'LAMB' if way == 'lamb' else '1-bit LAMB'}, clip 1{more_title}, lr {lr}",
        f"--optimizer {way} --set gradient_clipping=1{more}"
        f" --set optimizer.params.lr={lr}",
        "lamb_clip",
        against,
    )


def low_bit_wire_rows(lr, lamb_lr):
    """Returns rows of low-bit ZeRO, in little memory, with lagged clipping, or
    hierarchical."""

    def lamb(change):
        return lamb_row(lamb_lr, "onebit_lamb", change, "onebit_lamb_clip")

    return [
        adam_row(lr, "zero_4_4"),
        adam_row(lr, "zero_4_4", BY_HOST),
        adam_row(lr, "lean_onebit_adam", PLAIN, "onebit_adam"),
        *(
            adam_row(lr, way, warm, way)
            for way in ("onebit_adam", "zero_one_adam", "lean_onebit_adam")
            for warm in WARM
        ),
        *map(lamb, WARM),
        adam_row(lr, "onebit_adam", LAGGED, "onebit_adam"),
        adam_row(lr, "onebit_adam", BY_HOST, "onebit_adam"),
        adam_row(lr, "zero_one_adam", BY_HOST, "zero_one_adam"),
        lamb(BY_HOST),
    ]


def outer_rows(lr):
    """Returns rows of an outer loop, of 1-bit Adam if no other optimizer is named."""
    momentum = {"learning_rate": 0.7, "momentum": 0.6}
    rows = {
        "grows": ("1 to 16", {"sync_every": 16, "sync_growth": 75}),
        "5": ("5", {"sync_every": 5}),
        "5_exact": ("5, exact", {"sync_every": 5, "bits_up": 0, "bits_down": 0}),
        "15": ("15", {"sync_every": 15}),
        "15_momentum": ("15, momentum 0.6", {"sync_every": 15, **momentum}),
        "15_warm4": (
            "15, momentum 0.6, warm-up over 4 bits",
            {"sync_every": 15, "warmup_bits": 4, **momentum},
        ),
        "30_momentum": ("30, momentum 0.6", {"sync_every": 30, **momentum}),
        "60_momentum": ("60, momentum 0.6", {"sync_every": 60, **momentum}),
        "15_adam": (
            "15, momentum 0.6, Adam inside",
            {"sync_every": 15, "warmup_steps": 100, **momentum},
        ),
    }
    return [
        Row(
            f"outer_{name}_{lr}",
            f"Outer loop, interval {title}, lr {lr}",
            " ".join(
                (
                    f"--optimizer {'adam' if name.endswith('adam') else 'onebit_adam'}",
                    f"--set optimizer.params.lr={lr}",
                    *(f"--set outer.{key}={value}" for key, value in options.items()),
                )
            ),
            f"adam_{lr}",
        )
        for name, (title, options) in rows.items()
    ]


def all_rows():
    """Returns the rows in order of importance."""
    lr, lamb_lr = "1.5e-3", "1e-2"
    return [
        *(adam_row(lr, way) for way in ("adam", "onebit_adam", "zero_one_adam")),
        *(lamb_row(lamb_lr, way) for way in ("lamb", "onebit_lamb")),
        *low_bit_wire_rows(lr, lamb_lr),
        *outer_rows(lr),
    ]


class Study:
    COLUMNS = COLUMNS

    def __init__(self, given, folder):
        self.given, self.folder = given, folder
        self.data = given.data or kept_runs.lines_of("get_austen")

    def train(self, row, seed):
        """Runs it once. Returns True if it succeeded, now or earlier."""
        if self.read(row, seed):
            return True
        given, out = self.given, self.folder / row.name / f"seed_{seed}"
        command = ["mpirun", "-np", given.ranks, given.program, *row.flags.split()]
        command += ["--steps", given.steps, "--seed", seed]
        command += ["--set", "train_gpt.quiet=true"]
        command += ["--out", out, "--data", *self.data]
        if kept_runs.launch(command, row, seed, LAUNCH) is None:
            return False
        summary = json.loads((out / "summary.json").read_text())
        print(
            f"{row.name}, seed {seed}: {summary['final_val_loss']:.4f} nats per byte, "
            f"{summary['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return True

    def read(self, row, seed):
        """Returns loss, bytes and the share of steps that exchange anything; None if the
        run is missing or not complete."""
        folder = self.folder / row.name / f"seed_{seed}"
        run = kept_runs.read(folder / "summary.json")
        if run is None or "stopped_at" in run:  # a signal stopped it
            return None
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        sent = [line["bytes_sent"] for line in lines if "bytes_sent" in line]
        return {
            "loss": run["final_val_loss"],
            "bytes_sent": run["bytes_sent_per_rank"],
            "rounds": sum(1 for count in sent if count > 0) / len(sent),
        }

    def cells(self, results, row):
        compared = results.compared(row, itemgetter("loss"), ".3f")
        return (*compared, *results.exchanged(row, ".0f"))


def main():
    parser = kept_runs.arguments(__doc__, 500, "convergence")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--data", nargs="+", help="text; default: Jane Austen's novels")
    parser.add_argument(
        "--program", type=Path, default=ROOT / "build" / "release" / "bin" / "train_gpt"
    )
    given = kept_runs.parse(parser, all_rows())
    folder = given.out / f"{given.steps}_steps_{given.ranks}_ranks"
    _, succeeded = kept_runs.conduct(given, all_rows(), folder, Study(given, folder))
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
