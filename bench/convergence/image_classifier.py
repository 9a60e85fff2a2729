#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what low-bit exchanges cost on pictures: a small ResNet with batch
normalisation.

It trains on Fashion-MNIST with four ranks, and is compared by accuracy on the test
pictures. Runs that are complete in the folder are kept, so the study can be interrupted
and widened. Ends with 1 if a run fails, if ranks end with different parameters, or if a
mean difference is more than seed noise.
"""

import json
import sys
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import kept_runs
from kept_runs import ROOT, Row

NOISE = 0.5  # points of accuracy
COLUMNS = (
    *("", "n", "accuracy, %", "difference, points", "to", "seed noise"),
    *("loss, nats", "sent per rank", "fewer bytes", "rounds per step"),
)
ADAM_LR, LAMB_LR = 2e-3, 1e-2
BY_HOST = {"hierarchy": "by_host", "ranks_per_host": 2}  # two emulated hosts


def config(row, steps):
    """Returns the configuration file of a run of `steps` steps. All runs have the same
    settings, except that Adam's and LAMB's kinds differ in the learning rate.
    """
    freeze = {"freeze_step": steps // 5}
    params = {
        "OneBitAdam": freeze,
        "OneBitLamb": freeze,
        "ZeroOneAdam": {
            "var_freeze_step": steps // 2,
            "local_step_scaler": steps * 12 // 100,
            "local_step_clipper": 4,
        },
    }
    lr = LAMB_LR if row.flags.lower().endswith("lamb") else ADAM_LR
    return {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {
            "type": row.flags,
            "params": {"lr": lr, "betas": [0.9, 0.99], **params.get(row.flags, {})},
        },
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {
                "total_num_steps": steps,
                "warmup_num_steps": steps // 10,
                "warmup_type": "linear",
                "cos_min_ratio": 0.1,
            },
        },
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2 if "zero_bits_up" in row.own else 0},
        # In the test, statistics of the normalisation are the ranks' mean.
        "thinwire": {"buffers": "average", **row.own},
    }


def changed(row, end, title, against, **own):
    return replace(
        row,
        name=f"{row.name}_{end}",
        title=f"{row.title}, {title}",
        against=against,
        own={**row.own, **own},
    )


def by_host(row, against):
    return changed(row, "by_host", "by host", against, **BY_HOST)


def warm_up(row, bits):
    """Returns the row with a low-bit warm-up, to be compared with an exact one."""
    title = f"warm-up over {bits} bits"
    return changed(row, f"warm{bits}", title, row.name, warmup_bits=bits)


def all_rows():
    """Returns the rows; `flags` is the optimizer, `own` has keys of "thinwire"."""
    flat = onebit_adam, zero_one, onebit_lamb = (
        Row("onebit_adam", "1-bit Adam", "OneBitAdam", "adam"),
        Row("zero_one_adam", "0/1 Adam", "ZeroOneAdam", "adam"),
        Row("onebit_lamb", "1-bit LAMB", "OneBitLamb", "lamb"),
    )
    few_bits = {"zero_bits_up": 4, "zero_bits_down": 4}
    low_bit_zero = Row("zero_4_4", "ZeRO-2, Adam, 4 bits", "Adam", "adam", own=few_bits)
    factors = {"low_rank": 8, "first_steps": 50}
    low_rank = Row("low_rank_8", "Adam, low rank 8", "Adam", "adam", own=factors)
    lean = Row(
        *("lean_onebit_adam", "Lean 1-bit Adam", "OneBitAdam", "adam", "onebit_adam"),
        own={"lean": True},
    )
    return [
        Row("adam", "Adam", "Adam", "adam"),
        onebit_adam,
        zero_one,
        Row("lamb", "LAMB", "Lamb", "lamb"),
        onebit_lamb,
        low_rank,
        changed(
            onebit_adam,
            "under",
            "under the next step",
            "onebit_adam",
            compressed_under_next_step=True,
        ),
        low_bit_zero,
        by_host(low_bit_zero, "adam"),
        lean,
        *(by_host(row, row.name) for row in flat),
        *(warm_up(row, bits) for row in flat for bits in (8, 4)),
    ]


class Study:
    COLUMNS = COLUMNS

    def __init__(self, given, folder):
        self.given, self.folder = given, folder
        self.data = given.data or kept_runs.lines_of("get_fashion_mnist")[0]

    def result(self, row, seed):
        return self.folder / row.name / f"seed_{seed}.json"

    def train(self, row, seed):
        """Runs it once. Returns True if it succeeded, now or earlier."""
        file = self.folder / row.name / "config.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config(row, self.given.steps), indent=1) + "\n")
        command = [self.given.program, file, self.data, self.given.steps, seed]
        return kept_runs.run(command, row, seed, self.result(row, seed))

    def read(self, row, seed):
        return kept_runs.read(self.result(row, seed))

    def cells(self, results, row):
        accuracy = itemgetter("accuracy")
        return (
            *results.compared(row, accuracy, ".2f"),
            results.noise(row, accuracy, NOISE),
            results.spread(row.name, itemgetter("loss")).text(".3f"),
            *results.exchanged(row, ".1f"),
        )


def main():
    parser = kept_runs.arguments(__doc__, 1000, "pictures")
    parser.add_argument("--data", help="folder; default: that of get_fashion_mnist")
    parser.add_argument(
        "--program",
        type=Path,
        default=ROOT / "build" / "release" / "bin" / "image_classifier",
    )
    given = kept_runs.parse(parser, all_rows())
    folder = given.out / f"{given.steps}_steps"
    study = Study(given, folder)
    results, succeeded = kept_runs.conduct(given, all_rows(), folder, study)
    unequal = [key for key, run in results.runs.items() if not run["equal"]]
    if unequal:
        print(f"ranks ended with different parameters: {unequal}", file=sys.stderr)
    missed = results.beyond_noise(itemgetter("accuracy"), NOISE)
    return 0 if succeeded and not unequal and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
