#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt with ZeRO: the same bits as without, in less memory.

usage: train_gpt_zero_test.py PROGRAM MPIEXEC [TEST...]

MPIEXEC is empty where the build has no MPI; then tests that need it are
skipped, or fail if THINWIRE_REQUIRE names mpi.
"""

import json
import sys

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import Runs

SHARDED = ("--set zero_optimization.stage=1", "--set zero_optimization.stage=2")
TWO_THREADS = {"THINWIRE_NUM_THREADS": "2"}


class TrainGpt(Runs):
    def check_same_bits(self, extra, sharded=SHARDED, mpi=False):
        """On two ranks, threads or processes, with one thread each or two."""
        extra = f"--steps 5 {extra}"
        local = "--comm local --ranks 2"
        want = self.train("plain", f"{extra} {local}")
        for flags in sharded:
            with self.subTest(flags=flags):
                runs = [
                    self.train("zero", f"{extra} {flags} {local}"),
                    self.train(
                        "doubled", f"{extra} {flags} {local}", environment=TWO_THREADS
                    ),
                ]
                if mpi:
                    runs.append(self.train("processes", f"{extra} {flags}", ranks=2))
                for run in runs:
                    self.assertEqual(run["params_checksum"], want["params_checksum"])
                    self.assertEqual(run["final_val_loss"], want["final_val_loss"])
                    self.assertEqual(run["skipped_steps"], want["skipped_steps"])
                    self.assertEqual(run["zero"], 2 if "stage=2" in flags else 1)
        return want

    def test_same_bits_lamb_fp16(self):
        self.check_same_bits("--optimizer lamb --set fp16.enabled=true")

    def test_same_bits_accumulated(self):
        # At stage 2 every backward is reduced, and sums are rounded elsewhere.
        self.check_same_bits(
            "--optimizer adam --set bf16.enabled=true --set gradient_accumulation_steps=2",
            SHARDED[:1],
        )

    @needs_mpi
    def test_same_bits_in_processes_fp32(self):
        self.check_same_bits(
            "--optimizer adam",
            mpi=True,
        )

    @needs_mpi
    def test_same_bits_in_processes_bf16(self):
        self.check_same_bits(
            "--optimizer adam --set bf16.enabled=true",
            mpi=True,
        )

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

    def test_few_bits_have_the_same_bits_on_any_threads(self):
        extra = "--steps 5 --optimizer adam --set zero_optimization.stage=2 --set bf16.enabled=true --comm local"
        extra += " --ranks 2 --set zero_bits_up=4 --set zero_bits_down=8"
        run = self.train("one", extra)
        doubled = self.train("two", extra, environment=TWO_THREADS)
        self.assertEqual(run["params_checksum"], doubled["params_checksum"])

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

    def test_a_run_can_be_repeated_from_its_config(self):
        first = self.train(
            "first",
            "--steps 3 --optimizer adam --set zero_optimization.stage=2 --set zero_optimization.offload_optimizer.device=cpu",
        )
        config = self.folder / "first" / "config.json"
        out = self.folder / "again"
        done = self.run_program(["--config", str(config), "--out", str(out)])
        self.assertEqual(done.returncode, 0, done.stderr)
        again = json.loads((out / "summary.json").read_text())
        for key in ("params_checksum", "zero", "offload"):
            self.assertEqual(again[key], first[key])

    def test_wrong_usage_exits_2_with_one_line(self):
        data = ["--data", str(self.text)]
        for arguments, part in (
            (["--zero", "2"], "write --set zero_optimization.stage=N"),
            (["--set", "zero_optimization.stage=3"], "zero_optimization.stage"),
        ):
            with self.subTest(arguments=arguments):
                done = self.check_fails([*data, *arguments], 2, part)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
