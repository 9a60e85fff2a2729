#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt as users do: as MPI processes, as threads, and wrongly.

usage: train_gpt_test.py PROGRAM MPIEXEC [TEST...]
"""

import contextlib
import json
import os
import signal
import sys
import time

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import SMALL, TINY, Runs, batch, freeze
from train_gpt_saved_runs import ranks_of

SUMMARY_FIELDS = [
    "optimizer",
    "semantics",
    "ranks",
    "steps",
    "params",
    "final_val_loss",
    "final_val_bits_per_byte",
    "bytes_sent_per_rank",
    "seconds",
    "tokens_per_second",
    "params_checksum",
    "precision",
    "skipped_steps",
    "zero",
    "offload",
    "memory",
    "saves",
    "save_seconds",
]
# The engine's telemetry, and what train_gpt adds. Parts of `seconds` are keys of
# their own, because that is the whole step's time.
STEP_FIELDS = {
    *("step", "loss", "lr", "phase", "tokens", "bytes_sent", "seconds", "time"),
    *("loss_scale", "memory_bytes", "masked", "heavy", "revived", "applied"),
    *("grad_norm", "is_estimate", "clip_factor", "bytes_between_hosts"),
    *("backward_seconds", "wait_seconds", "update_seconds", "exchange_seconds"),
    *("messages", "collectives", "overlap", "late_elements", "waited_for", "memory"),
}
PRECISION = {
    "fp32": "",
    "fp16": "--set fp16.enabled=true",
    "bf16": "--set bf16.enabled=true",
}


class TrainGpt(Runs):
    def check_same_bits(self, ranks, optimizer):
        extra = f"--optimizer {optimizer}"
        local = f"{extra} --ranks {ranks}"
        threads = self.train("threads", local)
        processes = self.train("processes", extra, ranks=ranks)
        two = {"THINWIRE_NUM_THREADS": "2"}
        doubled = self.train("doubled", extra, ranks=ranks, environment=two)
        self.check_equal_runs(threads, processes, doubled)
        self.assertEqual(threads["ranks"], ranks)
        losses = [
            [row["loss"] for row in self.step_rows(name)]
            for name in ("threads", "processes", "doubled")
        ]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    @needs_mpi
    def test_same_bits_onebit_adam_4(self):
        self.check_same_bits(4, "onebit_adam")

    @needs_mpi
    def test_same_bits_zero_one_adam(self):
        # Long enough for every phase: 16 variance steps, then every other one.
        self.check_same_bits(2, "zero_one_adam --steps 60")
        rows = self.step_rows("processes")
        phases = [row["phase"] for row in rows]
        self.assertEqual(phases[:16], ["exact"] * 16)
        self.assertEqual(phases[16:30], ["compressed", "exact"] * 7)
        self.assertEqual(set(phases[30:]), {"compressed", "local"})
        for row in rows:
            self.assertEqual(row["bytes_sent"] == 0, row["phase"] == "local")
        # Validations are after steps 6, 12, ...: those are rounds in any case.
        self.assertNotIn("local", phases[35::6])

    @needs_mpi
    def test_16_bit_precision_learns_as_well(self):
        losses = [
            self.train(name, f"--optimizer adam {PRECISION[name]}", ranks=2)[
                "final_val_loss"
            ]
            for name in ("fp32", "fp16", "bf16")
        ]
        for loss in losses[1:]:
            self.assertAlmostEqual(loss, losses[0], delta=0.02)

    @needs_mpi
    def test_a_file_of_deepspeeds_starts_a_run(self):
        config = self.folder / "ds_config.json"
        keys = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "optimizer": {
                "type": "OneBitAdam",
                "params": {"lr": 1e-3, "freeze_step": 4, "cuda_aware": False},
            },
            "fp16": {"enabled": True, "initial_scale_power": 10},
            "wall_clock_breakdown": False,
        }
        config.write_text(json.dumps(keys))
        arguments = f"--steps 8 {TINY} --data {self.text}"
        where = f"--out {self.folder / 'ds'} --config {config}"
        done = self.run_program(f"{arguments} {where}".split(), ranks=2)
        for key in (
            "gradient_accumulation_steps: supported",
            "optimizer.params.freeze_step: supported",
            "optimizer.params.cuda_aware: ignored (no effect): messages are in host",
            "fp16.initial_scale_power: supported",
            "wall_clock_breakdown: supported",
        ):
            self.assertIn(f"config: {key}", done.stderr)
        rows = self.step_rows("ds")
        self.assertEqual([row["loss_scale"] for row in rows], [1024] * 8)
        phases = ["exact"] * 4 + ["compressed"] * 4
        self.assertEqual([row["phase"] for row in rows], phases)

    def test_writes_all_that_is_promised(self):
        summary = self.train("run", "--ranks 2 --seed 3")
        self.assertEqual(list(summary), SUMMARY_FIELDS)
        self.assertEqual(summary["optimizer"], "onebit_adam")
        self.assertEqual(summary["semantics"], "corrected")
        self.assertEqual(summary["ranks"], 2)
        self.assertEqual(summary["steps"], 30)
        self.assertRegex(summary["params_checksum"], "^[0-9a-f]{16}$")
        memory = summary["memory"]
        kinds = ("parameters", "gradients", "states", "buckets", "other")
        self.assertEqual(memory["peak"], sum(memory[kind] for kind in kinds))
        rows = self.metrics("run")
        steps = [row for row in rows if "loss" in row]
        self.assertEqual([row["step"] for row in steps], list(range(1, 31)))
        for row in steps:
            self.assertEqual(set(row), STEP_FIELDS)
        self.assertEqual(
            sum(row["bytes_sent"] for row in steps), summary["bytes_sent_per_rank"]
        )
        phases = ["exact"] * 10 + ["compressed"] * 20
        self.assertEqual([row["phase"] for row in steps], phases)
        # Small layers, so scales weigh more than at full size.
        self.assertLess(steps[20]["bytes_sent"] * 20, steps[5]["bytes_sent"])
        validations = [row for row in rows if "val_loss" in row]
        self.assertEqual(list(validations[-1]), ["step", "val_loss"])
        self.assertEqual(validations[-1]["step"], 30)
        self.assertEqual(validations[-1]["val_loss"], summary["final_val_loss"])
        self.assertLess(summary["final_val_loss"], steps[0]["loss"])

    def test_validations_are_as_often_and_as_long_as_asked_for(self):
        def steps_and_losses(name, extra):
            self.train(name, extra)
            rows = [row for row in self.metrics(name) if "val_loss" in row]
            return {row["step"]: row["val_loss"] for row in rows}

        often = steps_and_losses("often", "--seed 3 --set train_gpt.validate_every=12")
        self.assertEqual(list(often), [12, 24, 30])
        once = steps_and_losses("once", "--seed 3 --set train_gpt.validate_every=0")
        self.assertEqual(once, {30: often[30]})
        short = steps_and_losses(
            "short",
            "--seed 3 --set train_gpt.validate_every=0 "
            "--set train_gpt.validate_bytes=64",
        )
        self.assertEqual(list(short), [30])
        self.assertNotEqual(short[30], once[30])
        config = json.loads((self.folder / "short" / "config.json").read_text())
        self.assertEqual(config["train_gpt"]["validate_every"], 0)
        self.assertEqual(config["train_gpt"]["validate_bytes"], 64)

    def test_a_run_can_be_repeated_from_its_config(self):
        first = self.train("first", f"--seed 5 --set verify_every=5 {batch(4)}")
        config = self.folder / "first" / "config.json"
        out = self.folder / "again"
        self.run_program(["--config", str(config), "--out", str(out)])
        again = self.summary_of(out)
        self.assertEqual(again["params_checksum"], first["params_checksum"])
        other = self.train("other", "--seed 6")
        self.assertNotEqual(other["params_checksum"], first["params_checksum"])

    def test_wrong_usage_exits_2_with_one_line(self):
        arguments = ["--data", str(self.text), "--steps", "0"]
        done = self.check_fails(arguments, 2, "--steps")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_failures_exit_1_with_one_line(self):
        out = str(self.folder / "run")
        local = ["--ranks", "3", "--out", out]
        done = self.check_fails(["--data", "/no/such/text", *local], 1, "/no/such/text")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        data = ["--data", str(self.text), "--out", str(self.text / "x")]
        self.check_fails(data, 1, "text.txt")

    @needs_mpi
    def test_all_processes_together_report_a_missing_file_once(self):
        done = self.check_fails(["--data", "/no/such/text"], 1, ranks=2)
        self.assertEqual(done.stderr.count("train_gpt: "), 1, done.stderr)

    def test_help_and_version_exit_0(self):
        for flag, part in (("--help", "--save-every"), ("--version", "0.")):
            self.assertIn(part, self.run_program([flag]).stdout)

    def long_run(self, ranks=0, flags=""):
        """Starts a run without an end, and waits for its first results."""
        out = self.folder / "long"
        arguments = f"{SMALL} {freeze(10)} --steps 1000000 {batch(1)} --out {out}"
        arguments += f" --data {self.text}"
        process = self.begin(f"{arguments} {flags}".split(), ranks, timeout="20s")
        metrics = out / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.stat().st_size > 0):
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline, "it does not begin")
            time.sleep(0.05)
        return process

    @needs_mpi
    def test_a_killed_rank_ends_the_others_with_a_named_error(self):
        process = self.long_run(ranks=3)
        os.kill(ranks_of(process)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(errors, r"train_gpt: rank \d: .*SIGTERM")

    @needs_mpi
    def test_a_hung_rank_ends_the_others_with_a_named_error(self):
        process = self.long_run(ranks=3)
        victim = ranks_of(process)[1]
        os.kill(victim, signal.SIGSTOP)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(errors, r"train_gpt: rank \d: ")

    def check_stopped(self, name, code, flags=""):
        """A run that a signal ends leaves a summary and one line."""
        process = self.long_run(flags=flags)
        process.send_signal(getattr(signal, name))
        errors = self.end_of(process, code)
        out = self.folder / "long"
        summary = self.summary_of(out)
        steps = [row["step"] for row in self.step_rows("long")]
        self.assertEqual(summary["stopped_by"], name)
        self.assertEqual(summary["stopped_at"], steps[-1])
        self.assertEqual(steps, list(range(1, steps[-1] + 1)))
        self.assertEqual(summary["steps"], 1000000)
        line = f"train_gpt: stopped by {name} at step {steps[-1]} of 1000000; {out} "
        self.assertIn(line, errors)
        self.assertNotIn("another rank", errors)

    def test_sigterm_ends_a_run_with_a_summary(self):
        self.check_stopped("SIGTERM", 143)

    def test_sigint_ends_a_run_with_a_summary(self):
        self.check_stopped("SIGINT", 130)

    def test_sigint_ends_a_run_of_threads_with_a_summary(self):
        self.check_stopped("SIGINT", 130, "--ranks 2")


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
