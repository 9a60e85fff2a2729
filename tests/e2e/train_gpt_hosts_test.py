#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt on four ranks of two hosts: processes have the bits of threads.

usage: train_gpt_hosts_test.py PROGRAM MPIEXEC [TEST...]
"""

import math
import sys

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import Runs, batch, freeze

STEPS = "--steps 10 --set train_gpt.warmup_steps=2"
BY_HOST = "--set hierarchy=by_host --set ranks_per_host=2"
THREADS = "--ranks 4"
# Variance steps, 1-bit steps, then a sync in every second step.
ZERO_ONE_ADAM = "--optimizer zero_one_adam --set optimizer.params.var_freeze_step=6 --set optimizer.params.local_step_clipper=2"
# The variable groups processes as BY_HOST does threads.
OF_TWO = {"THINWIRE_RANKS_PER_HOST": "2"}
FEW_BITS = "--set zero_bits_up=4 --set zero_bits_down=4"


class TrainGpt(Runs):
    def check_same_bits(self, flags):
        extra = f"{STEPS} {flags}"
        threads = self.train("threads", f"{extra} {BY_HOST} {THREADS}")
        processes = self.train("processes", extra, ranks=4, environment=OF_TWO)
        self.check_equal_runs(threads, processes)
        self.assertEqual(
            processes["bytes_sent_per_rank"], threads["bytes_sent_per_rank"]
        )
        self.assertEqual(processes["ranks"], 4)
        of_threads, of_processes = (
            [
                (row["step"], row["loss"], row["phase"], row["bytes_between_hosts"])
                for row in self.step_rows(name)
            ]
            for name in ("threads", "processes")
        )
        self.assertEqual(of_threads, of_processes)
        for row in self.metrics("processes"):
            if row.get("phase", "local") != "local":
                self.assertGreater(row["bytes_between_hosts"], 0)
                self.assertLess(row["bytes_between_hosts"], row["bytes_sent"])
        return processes, {row[2] for row in of_processes}

    @needs_mpi
    def test_same_bits_zero_one_adam(self):
        _, phases = self.check_same_bits(f"{ZERO_ONE_ADAM} --steps 16")
        self.assertEqual(phases, {"exact", "compressed", "local"})

    @needs_mpi
    def test_same_bits_zero_2_in_4_bits(self):
        flags = f"--optimizer adam --set zero_optimization.stage=2 {FEW_BITS} --set bf16.enabled=true"
        summary, _ = self.check_same_bits(flags)
        self.assertEqual((summary["zero"], summary["zero_bits"]), (2, "4/4"))

    # ---- from a checkpoint

    @needs_mpi
    def test_resumed_onebit_adam(self):
        """Saves after 6 of 10 steps; goes on there as if there were no end, and elsewhere."""
        extra = f"{STEPS} --optimizer onebit_adam {freeze(4)} {batch(8)}"
        saving = f"{extra} {BY_HOST} --save-every 6 --set checkpoint.keep_last=0"
        whole = self.train("whole", saving, ranks=4)
        saved = self.folder / "whole" / "checkpoints" / "step-0000000006"
        resume = f"{extra} --resume {saved}"
        same = self.train("same", f"{resume} {BY_HOST}", ranks=4)
        self.check_equal_runs(same, whole)
        self.assertEqual(same["resumed_from"], 6)
        for name, others, ranks in (
            ("flat", "--set hierarchy=flat", 4),
            ("threads", f"{BY_HOST} --ranks 8 {batch(4)}", 0),
            ("two", batch(16), 2),
        ):
            with self.subTest(to=name):
                run = self.train(name, f"{resume} {others}", ranks=ranks)
                self.assertEqual(run["resumed_from"], 6)
                self.assertTrue(math.isfinite(run["final_val_loss"]))
                # Of so short a run ranks and hosts make no more difference.
                self.assertAlmostEqual(
                    run["final_val_loss"], whole["final_val_loss"], delta=0.05
                )
                self.assertEqual(self.step_rows(name)[0]["step"], 7)


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
