#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt with ZeRO: the same bits as without, in less memory.

usage: train_gpt_zero_test.py PROGRAM MPIEXEC [TEST...]

MPIEXEC is empty where the build has no MPI; then tests that need it are
skipped, or fail if THINWIRE_REQUIRE names mpi.
"""

import sys

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import Runs

TWO_THREADS = {"THINWIRE_NUM_THREADS": "2"}


class TrainGpt(Runs):
    @needs_mpi
    def test_the_bits_of_no_zero_in_threads_and_processes(self):
        """On two ranks, with one thread each or two."""
        extra = "--steps 5 --optimizer adam --set bf16.enabled=true"
        local = "--comm local --ranks 2"
        want = self.train("plain", f"{extra} {local}")
        for stage in (1, 2):
            flags = f"{extra} --set zero_optimization.stage={stage}"
            with self.subTest(stage=stage):
                for run in (
                    self.train("zero", f"{flags} {local}"),
                    self.train("doubled", f"{flags} {local}", environment=TWO_THREADS),
                    self.train("processes", flags, ranks=2),
                ):
                    for key in ("params_checksum", "final_val_loss", "skipped_steps"):
                        self.assertEqual(run[key], want[key])
                    self.assertEqual(run["zero"], stage)

    def test_few_bits_send_less(self):
        extra = "--steps 5 --optimizer adam --comm local --ranks 2"
        exact = self.train("exact", f"{extra} --set zero_optimization.stage=2")
        bits = "--set zero_bits_up=4 --set zero_bits_down=4"
        runs = [
            self.train("bits", f"{extra} --set zero_optimization.stage={stage} {bits}")
            for stage in (1, 2)
        ]
        for run in runs:
            self.assertEqual(run["zero_bits"], "4/4")
            self.assertEqual(run["params_checksum"], runs[0]["params_checksum"])
            self.assertLess(
                7 * run["bytes_sent_per_rank"], exact["bytes_sent_per_rank"]
            )

    @needs_mpi
    def test_lean_has_the_same_bits_in_processes(self):
        extra = "--steps 8 --freeze-step 4 --warmup-steps 2 --set bf16.enabled=true"
        lean = f"{extra} --optimizer lean_onebit_adam"
        run = self.train("threads", f"{lean} --comm local --ranks 2")
        others = [
            self.train("set", f"{extra} --set lean=true --comm local --ranks 2"),
            self.train("processes", lean, ranks=2),
        ]
        for other in others:
            self.assertEqual(other["optimizer"], "lean_onebit_adam")
            self.assertEqual(other["params_checksum"], run["params_checksum"])

    def test_writes_what_memory_holds(self):
        extra = "--steps 2 --width 128 --optimizer adam --set bf16.enabled=true --comm local"
        whole = self.train("whole", f"{extra} --ranks 4")
        memory = {
            stage: self.train(
                "run", f"{extra} --ranks 4 --set zero_optimization.stage={stage}"
            )["memory"]
            for stage in (1, 2)
        }
        n = whole["params"]
        for use in (whole["memory"], *memory.values()):
            kinds = ("parameters", "gradients", "states", "buckets", "other")
            self.assertEqual(list(use), [*kinds, "peak"])
            self.assertEqual(use["peak"], sum(use[kind] for kind in kinds))
            self.assertAlmostEqual(use["parameters"], 2 * n, delta=0.05 * n)
        self.assertAlmostEqual(whole["memory"]["states"], 12 * n, delta=0.05 * n)
        for use in memory.values():  # a quarter, but for what is cut unevenly
            self.assertAlmostEqual(use["states"], 3 * n, delta=0.3 * n)
        self.assertAlmostEqual(memory[1]["gradients"], 2 * n, delta=0.05 * n)
        self.assertLess(memory[2]["gradients"], 1.5 * n)
        self.assertLess(memory[1]["peak"], whole["memory"]["peak"])


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
