#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt on four ranks of two hosts: processes have the bits of threads.

usage: train_gpt_hosts_test.py PROGRAM MPIEXEC [TEST...]
"""

import math
import sys

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import Runs

STEPS = "--steps 10 --freeze-step 4 --warmup-steps 2"
BY_HOST = "--set hierarchy=by_host --set ranks_per_host=2"
THREADS = "--comm local --ranks 4"
# Variance steps, 1-bit steps, then a sync in every second step.
ZERO_ONE_ADAM = "--optimizer zero_one_adam --set optimizer.params.var_freeze_step=6 --set optimizer.params.local_step_clipper=2"
FEW_BITS = "--set zero_bits_up=4 --set zero_bits_down=4"


class TrainGpt(Runs):
    def check_same_bits(self, flags):
        extra = f"{STEPS} {flags} {BY_HOST}"
        threads = self.train("threads", f"{extra} {THREADS}")
        processes = self.train("processes", extra, ranks=4)
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

    @needs_mpi
    def test_the_variable_says_who_shares_a_host(self):
        extra = f"{STEPS} --optimizer onebit_adam"
        wanted = self.train("set", f"{extra} {BY_HOST} {THREADS}")
        flat = self.train("flat", extra, ranks=4)
        two = {"THINWIRE_RANKS_PER_HOST": "2"}
        for name, flags, ranks in (
            ("threads", f"{extra} {THREADS}", 0),
            ("processes", extra, 4),
        ):
            run = self.train(name, flags, ranks=ranks, environment=two)
            self.assertEqual(run["params_checksum"], wanted["params_checksum"])
            self.assertNotEqual(run["params_checksum"], flat["params_checksum"])
        asked = self.train(
            "asked", f"{extra} --set hierarchy=flat", ranks=4, environment=two
        )
        self.assertEqual(asked["params_checksum"], flat["params_checksum"])

    @needs_mpi
    def test_containers_of_one_machine_train_flat_and_warn_once(self):
        """One rank in each, so that a launcher counts one rank per host."""
        extra = f"{STEPS} --optimizer onebit_adam"
        flat = self.train("flat", f"{extra} --set hierarchy=flat", ranks=4)
        one_each = ["env", "OMPI_COMM_WORLD_LOCAL_SIZE=1"]
        out = self.folder / "containers"
        arguments = [*train_gpt_runs.SMALL.split(), "--data", str(self.text)]
        arguments += ["--out", str(out), *extra.split()]
        done = self.run_program(arguments, ranks=4, wrapper=one_each)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = "every rank counts as a host of its own: 4 ranks have the boot id"
        self.assertEqual(done.stderr.count(said), 1, done.stderr)
        self.assertIn("THINWIRE_RANKS_PER_HOST", done.stderr)
        self.assertEqual(
            self.summary_of(out)["params_checksum"], flat["params_checksum"]
        )
        done = self.run_program(
            [*arguments, "--set", "hierarchy=by_host", "--out", str(out) + "2"],
            ranks=4,
            wrapper=one_each,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("OMPI_COMM_WORLD_LOCAL_SIZE = 1", done.stderr)

    @needs_mpi
    def test_a_number_that_does_not_fit_ends_all_processes(self):
        data = ["--data", str(self.text)]
        for environment, settings, part in (
            ({"THINWIRE_RANKS_PER_HOST": "3"}, [], "a divisor of the number of ranks"),
            ({"THINWIRE_RANKS_PER_HOST": "x"}, [], "THINWIRE_RANKS_PER_HOST"),
            ({}, ["--set", "ranks_per_host=3"], "a divisor of the number of ranks"),
            ({}, ["--set", "hierarchy=by_host"], "ranks are on one host"),
        ):
            with self.subTest(part=part, settings=settings):
                arguments = [*data, *STEPS.split(), *settings]
                done = self.run_program(arguments, ranks=4, environment=environment)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(part, done.stderr)

    # ---- from a checkpoint

    @needs_mpi
    def test_resumed_onebit_adam(self):
        """Saves after 6 of 10 steps; goes on there as if there were no end, and elsewhere."""
        extra = f"{STEPS} --optimizer onebit_adam --batch 8"
        saving = f"{extra} {BY_HOST} --save-every 6 --keep-last 0"
        whole = self.train("whole", saving, ranks=4)
        saved = self.folder / "whole" / "checkpoints" / "step-0000000006"
        resume = f"{extra} --resume {saved}"
        same = self.train("same", f"{resume} {BY_HOST}", ranks=4)
        self.check_equal_runs(same, whole)
        self.assertEqual(same["resumed_from"], 6)
        for name, others, ranks in (
            ("flat", "--set hierarchy=flat", 4),
            ("threads", f"{BY_HOST} --comm local --ranks 8 --batch 4", 0),
            ("two", "--batch 16", 2),
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
