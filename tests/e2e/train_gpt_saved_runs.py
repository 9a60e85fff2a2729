# SPDX-License-Identifier: Apache-2.0
"""What tests of saved and resumed runs of train_gpt have in common."""

import json
import os
import time

from train_gpt_runs import QUIET, Runs, batch, freeze, size

# Steps of some 10 ms, so that a kill comes between two of them.
STEPS = f"--steps 60 {batch(4)} --save-every 4"
SIZE = size(2, 64, 2, 32)
THREADS = "--ranks 2"
LONG = "THINWIRE_TEST_LONG" in os.environ
# What differs from run to run.
MEASURED = (
    "seconds",
    "memory",
    "memory_bytes",
    "time",
    "overlap",
    "backward_seconds",
    "wait_seconds",
    "update_seconds",
    "exchange_seconds",
)


def steps_of(rows):
    return [row["step"] for row in rows if "loss" in row]


def ranks_of(process):
    """Ranks that mpirun has started, or itself while there are none."""
    path = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(path, encoding="utf-8") as file:
        return [int(number) for number in file.read().split()] or [process.pid]


class SavedRuns(Runs):
    """Runs that save, and what they leave."""

    def arguments(self, name, extra):
        stages = freeze(16)
        if "zero_one_adam" in extra:
            stages = "--set optimizer.params.var_freeze_step=30"
        elif "--optimizer adam" in extra:
            stages = ""
        flags = f"{STEPS} {stages} {SIZE} {QUIET} --out {self.folder / name} {extra}"
        return ["--data", str(self.text), *flags.split()]

    def start(self, name, extra, ranks=0, timeout="60s", **how):
        return self.begin(self.arguments(name, extra), ranks, timeout, **how)

    def complete(self, name, extra, code=0, **how):
        return self.end_of(self.start(name, extra, **how), code, seconds=300)

    def rows(self, name):
        """Whole rows so far, without what was measured."""
        path = self.folder / name / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        rows = [json.loads(line) for line in lines]
        for row in rows:
            for key in MEASURED:
                row.pop(key, None)
        return rows

    def summary(self, name):
        return self.summary_of(self.folder / name)

    def checkpoints(self, name):
        found = (self.folder / name / "checkpoints").glob("step-*")
        return sorted(path for path in found if (path / "manifest.json").exists())

    def wait_for(self, name, process, condition):
        """Until the rows of the run meet it; returns them."""
        deadline = time.monotonic() + 120
        while not condition(rows := self.rows(name)):
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline, "it does not get there")
            time.sleep(0.002)
        return rows

    def kill(self, name, process, condition):
        rows = self.wait_for(name, process, condition)
        process.kill()
        process.communicate(timeout=60)
        return rows

    def check_same(self, name, reference):
        self.assertEqual(self.rows(name), self.rows(reference))
        mine, its = self.summary(name), self.summary(reference)
        for key in (
            "params_checksum",
            "final_val_loss",
            "bytes_sent_per_rank",
            "skipped_steps",
            "steps",
            "ranks",
        ):
            self.assertEqual(mine[key], its[key], key)
        self.assertNotIn("resumed_from", its)
