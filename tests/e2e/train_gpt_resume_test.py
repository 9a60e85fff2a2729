#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of train_gpt that are killed, stopped and resumed.

usage: train_gpt_resume_test.py PROGRAM MPIEXEC [TEST...]

MPIEXEC is empty where the build has no MPI; then tests that need it are
skipped, or fail if THINWIRE_REQUIRE names mpi. THINWIRE_TEST_LONG=1 makes
loops of kills many times as long.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import train_gpt_runs
from mpi_launcher import launcher, needs_mpi
from train_gpt_runs import Runs

# Steps of some 10 ms, so that a kill comes between two of them.
STEPS = "--steps 60 --freeze-step 16 --var-freeze-step 30 --batch 4 --save-every 4"
SIZE = "--layers 2 --width 64 --heads 2 --context 32"
THREADS = "--comm local --ranks 2"
LONG = "THINWIRE_TEST_LONG" in os.environ
# What differs from run to run.
MEASURED = (
    "seconds",
    "memory_bytes",
    "time",
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


class TrainGpt(Runs):
    def arguments(self, name, extra):
        flags = f"{STEPS} {SIZE} --quiet --out {self.folder / name} {extra}"
        return ["--data", str(self.text), *flags.split()]

    def start(self, name, extra, ranks=0, timeout="60s", **how):
        process = subprocess.Popen(
            [*launcher(ranks), train_gpt_runs.PROGRAM, *self.arguments(name, extra)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "THINWIRE_TIMEOUT": timeout},
            **how,
        )
        self.addCleanup(process.kill)
        return process

    def complete(self, name, extra, code=0, **how):
        process = self.start(name, extra, **how)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, code, errors)
        return errors

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
        return json.loads((self.folder / name / "summary.json").read_text())

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

    # ---- killed

    def check_killed_in(self, phases, extra):
        """SIGKILL in each phase of one run, which ends as if there were none."""
        self.complete("whole", f"{extra} {THREADS}")
        process = self.start("run", f"{extra} {THREADS}")
        for phase in phases:
            at_least = max(steps_of(self.rows("run")), default=0)

            def is_there(rows, phase=phase, at_least=at_least):
                new = [row for row in rows if row["step"] > at_least]
                is_saved = len(new) > 10
                return is_saved and any(row.get("phase") == phase for row in new)

            with self.subTest(phase=phase):
                self.kill("run", process, is_there)
                self.assertFalse((self.folder / "run" / "summary.json").exists())
                process = self.start("run", f"{extra} {THREADS} --resume auto")
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("resumed from", errors)
        self.check_same("run", "whole")
        summary = self.summary("run")
        self.assertGreater(summary["resumed_from"], 0)
        self.assertGreaterEqual(summary["saves"], 15)
        self.assertGreater(summary["save_seconds"], 0)

    def test_killed_adam(self):
        self.check_killed_in(["exact"], "--optimizer adam")

    def test_killed_adam_sharded_in_bf16(self):
        self.check_killed_in(["exact"], "--optimizer adam --zero 2 --precision bf16")

    def test_killed_onebit_adam(self):
        extra = "--optimizer onebit_adam --variance-refresh 5"
        self.check_killed_in(["exact", "compressed"], extra)

    def test_killed_onebit_adam_in_fp16(self):
        extra = "--optimizer onebit_adam --precision fp16 --accumulate 2"
        self.check_killed_in(["exact", "compressed"], extra)

    def test_killed_lamb(self):
        self.check_killed_in(["exact"], "--optimizer lamb")

    def test_killed_onebit_lamb(self):
        self.check_killed_in(["exact", "compressed"], "--optimizer onebit_lamb")

    def test_killed_zero_one_adam(self):
        phases = ["exact", "compressed", "local"]
        self.check_killed_in(phases, "--optimizer zero_one_adam")

    @needs_mpi
    def test_killed_processes(self):
        self.complete("whole", "", ranks=2)
        process = self.start("run", "", ranks=2)
        self.wait_for("run", process, lambda rows: len(rows) > 20)
        os.kill(ranks_of(process)[1], signal.SIGKILL)
        process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.complete("run", "--resume auto", ranks=2)
        self.check_same("run", "whole")

    @needs_mpi
    def test_killed_processes_again_and_again(self):
        """One of two ranks, or the launcher, at any time."""
        kills = 40 if LONG else 4
        extra = (
            f"--optimizer zero_one_adam --save-every 3 --steps {200 if LONG else 60}"
        )
        self.complete("whole", extra, ranks=2)
        moments = random.Random(11)
        for _ in range(kills):
            process = self.start("run", f"{extra} --resume auto", ranks=2)
            try:
                _, errors = process.communicate(timeout=0.4 + 1.2 * moments.random())
            except subprocess.TimeoutExpired:
                os.kill(moments.choice(ranks_of(process)), signal.SIGKILL)
                process.communicate(timeout=60)
                continue
            self.assertEqual(process.returncode, 0, errors)  # it was faster
            self.check_same("run", "whole")
            shutil.rmtree(self.folder / "run")
        self.complete("run", f"{extra} --resume auto", ranks=2)
        self.check_same("run", "whole")

    def test_killed_again_and_again(self):
        """At any time, also while it saves or begins."""
        kills = 100 if LONG else 5
        extra = "--optimizer zero_one_adam --save-every 3"
        steps = f"--steps {300 if LONG else 60}"
        self.complete("whole", f"{extra} {THREADS} {steps}")
        moments = random.Random(7)
        killed = 0
        while killed < kills:
            process = self.start("run", f"{extra} {THREADS} {steps} --resume auto")
            try:
                _, errors = process.communicate(timeout=0.2 + moments.random())
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=60)
                killed += 1
                continue
            # It was faster: the same end once more, from an earlier checkpoint.
            self.assertEqual(process.returncode, 0, errors)
            self.check_same("run", "whole")
            shutil.rmtree(self.folder / "run")
        self.complete("run", f"{extra} {THREADS} {steps} --resume auto")
        self.check_same("run", "whole")
        left = [path.name for path in (self.folder / "run/checkpoints").iterdir()]
        self.assertLessEqual(len([name for name in left if "step-" in name]), 3, left)

    # ---- a rank that stands still while saving

    def stop_a_rank_while_saving(self, extra):
        """Of two processes one stands still, and no checkpoint gets complete."""
        process = self.start("run", extra, ranks=2, timeout="15s")
        folder = self.folder / "run" / "checkpoints"

        def is_saving():
            return any(folder.glob("step-*.partial-*"))

        while True:
            self.assertIsNone(process.poll(), "it ended by itself")
            # Not the first one: without a checkpoint the next run is another.
            if not (is_saving() and self.checkpoints("run")):
                time.sleep(0.0005)
                continue
            stopped = ranks_of(process)[1]
            os.kill(stopped, signal.SIGSTOP)
            self.addCleanup(self.kill_if_there, stopped)
            time.sleep(1.5)  # in which the other one does what it can alone
            if is_saving():
                return process, stopped
            os.kill(stopped, signal.SIGCONT)

    def kill_if_there(self, process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    @needs_mpi
    def test_a_rank_that_stands_still_for_a_while_is_waited_for(self):
        extra = "--optimizer onebit_adam --save-every 2"
        self.complete("whole", extra, ranks=2)
        process, stopped = self.stop_a_rank_while_saving(extra)
        complete = self.checkpoints("run")
        time.sleep(1)
        self.assertEqual(self.checkpoints("run"), complete)
        os.kill(stopped, signal.SIGCONT)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, errors)
        self.check_same("run", "whole")

    @needs_mpi
    def test_a_rank_that_stands_still_for_good_ends_the_run_that_then_goes_on(self):
        extra = "--optimizer onebit_adam --save-every 2"
        self.complete("whole", extra, ranks=2)
        process, _ = self.stop_a_rank_while_saving(extra)
        _, errors = process.communicate(timeout=120)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(errors, r"train_gpt: rank 0: .*timed out waiting for rank 1 ")
        self.complete("run", f"{extra} --resume auto", ranks=2)
        self.check_same("run", "whole")
        left = (self.folder / "run" / "checkpoints").glob("*.partial-*")
        self.assertEqual([*left], [])

    # ---- from any checkpoint, with other ranks

    def test_any_checkpoint_continues_alike(self):
        extra = f"--optimizer zero_one_adam {THREADS}"
        self.complete("whole", f"{extra} --keep-last 0")
        all_of_them = self.checkpoints("whole")
        self.assertGreaterEqual(len(all_of_them), 14)
        for path in all_of_them[1::5]:
            with self.subTest(path=path.name):
                self.complete("run", f"{extra} --resume {path}")
                # The rows before are the first run's.
                whole = self.rows("whole")
                first = self.summary("run")["resumed_from"]
                self.assertEqual(
                    self.rows("run"), [row for row in whole if row["step"] > first]
                )
                mine, its = self.summary("run"), self.summary("whole")
                for key in ("params_checksum", "bytes_sent_per_rank"):
                    self.assertEqual(mine[key], its[key], key)
                self.assertGreater(mine["seconds"], 0.3 * its["seconds"])
                shutil.rmtree(self.folder / "run")

    def test_other_numbers_of_ranks_see_the_same_data(self):
        """4 -> 2 -> 3 ranks, 12 sequences per step throughout."""
        ways = (
            "--ranks 4 --batch 3 --steps 60",
            "--ranks 2 --batch 3 --accumulate 2 --steps 60",
            "--ranks 3 --batch 4 --steps 60",
        )
        for optimizer in ("onebit_adam", "zero_one_adam"):
            extra = f"--optimizer {optimizer} --comm local"
            with self.subTest(optimizer=optimizer):
                self.complete(
                    f"{optimizer}_whole", f"{extra} {ways[0]} --keep-every 24"
                )
                name = f"{optimizer}_run"
                for way, end in zip(ways, (24, 44, 60)):
                    flags = f"{extra} {way} --resume auto"
                    if end == 60:
                        self.complete(name, flags)
                        break
                    process = self.start(name, flags)
                    self.kill(
                        name,
                        process,
                        lambda rows, end=end: max(steps_of(rows), default=0) >= end,
                    )
                rows, whole = self.rows(name), self.rows(f"{optimizer}_whole")
                self.assertEqual(steps_of(rows), steps_of(whole))
                self.assertEqual(
                    [row.get("tokens") for row in rows],
                    [row.get("tokens") for row in whole],
                )
                mine = self.summary(name)
                its = self.summary(f"{optimizer}_whole")
                self.assertEqual(mine["ranks"], 3)
                self.assertGreaterEqual(mine["resumed_from"], 40)
                # Of so short a run seeds differ by as much.
                self.assertAlmostEqual(
                    mine["final_val_loss"], its["final_val_loss"], delta=0.15
                )
                losses = {row["step"]: row.get("loss") for row in whole}
                # The same parameters see the same text.
                path = self.checkpoints(f"{optimizer}_whole")[0]
                other = f"{optimizer}_other"
                flags = f"{extra} {ways[1]} --resume {path}"
                self.complete(other, flags)
                first = next(row for row in self.rows(other) if "loss" in row)
                self.assertAlmostEqual(first["loss"], losses[first["step"]], delta=1e-5)

    # ---- stopped

    def check_stopped(self, name, extra, send, ranks=0):
        """A signal saves and ends with 3; then the run goes on alike."""
        process = self.start("run", f"{extra} --steps 100000", ranks=ranks)
        self.wait_for("run", process, lambda rows: len(steps_of(rows)) > 4)
        process.send_signal(send)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, errors)
        summary = self.summary("run")
        step = summary["stopped_at"]
        self.assertEqual(summary["stopped_by"], name)
        self.assertEqual(steps_of(self.rows("run")), list(range(1, step + 1)))
        newest = self.checkpoints("run")[-1]
        self.assertEqual(newest.name, f"step-{step:010}")
        line = f"stopped by {name} at step {step} of 100000, checkpoint complete: "
        self.assertIn(f"{line}{newest}; run again with --resume auto", errors)
        more = f"{extra} --steps {step + 7}"
        self.complete("run", f"{more} --resume auto", ranks=ranks)
        self.assertEqual(self.summary("run")["resumed_from"], step)
        return errors

    def test_a_stopped_run_ends_as_if_it_had_not_been(self):
        extra = f"--optimizer zero_one_adam --steps 300 {THREADS}"
        self.complete("whole", extra)
        process = self.start("run", extra)
        self.wait_for("run", process, lambda rows: len(steps_of(rows)) >= 100)
        process.send_signal(signal.SIGUSR1)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, errors)
        self.complete("run", f"{extra} --resume auto")
        self.check_same("run", "whole")

    def test_sigterm_saves(self):
        self.check_stopped("SIGTERM", THREADS, signal.SIGTERM)

    def test_sigint_saves(self):
        self.check_stopped("SIGINT", "--optimizer zero_one_adam", signal.SIGINT)

    def test_sigusr1_saves_whatever_was_asked_for(self):
        extra = f"{STEPS} {SIZE}".replace("--save-every 4", "")
        out = self.folder / "run"
        arguments = f"{extra} --steps 100000 --quiet --data {self.text} --out {out}"
        process = subprocess.Popen(
            [train_gpt_runs.PROGRAM, *arguments.split()], stderr=subprocess.PIPE
        )
        self.addCleanup(process.kill)
        self.wait_for("run", process, lambda rows: len(rows) > 4)
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3)
        self.assertEqual(len(self.checkpoints("run")), 1)

    @needs_mpi
    def test_mpirun_forwards_sigusr1(self):
        errors = self.check_stopped("SIGUSR1", "", signal.SIGUSR1, ranks=3)
        self.assertNotIn("finaliz", errors, "all ranks pass MPI_Finalize")

    @needs_mpi
    def test_one_ranks_signal_is_enough(self):
        process = self.start("run", "--steps 100000", ranks=3)
        self.wait_for("run", process, lambda rows: len(rows) > 4)
        os.kill(ranks_of(process)[-1], signal.SIGUSR1)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, errors)

    @needs_mpi
    def test_sigterm_under_mpirun_does_not_save(self):
        process = self.start("run", "--steps 100000", ranks=2)
        self.wait_for("run", process, lambda rows: len(rows) > 4)
        before = len(self.checkpoints("run"))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        self.assertNotIn(process.returncode, (0, 3), errors)
        self.assertNotIn("checkpoint complete", errors)
        self.assertGreater(before, 0)

    def test_a_second_signal_interrupts_at_once(self):
        extra = "--steps 100000 --save-every 1000000 --save-on USR1,USR2"
        process = self.start("run", f"{extra} {THREADS}")
        self.wait_for("run", process, lambda rows: len(rows) > 4)
        process.send_signal(signal.SIGSTOP)  # so that both come at once
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGUSR2)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
        # The later one of the two, whichever that was.
        name = self.summary("run")["stopped_by"]
        self.assertIn(name, ("SIGUSR1", "SIGUSR2"))
        code = 128 + getattr(signal, name)
        self.assertEqual(process.returncode, code, errors)
        self.assertIn(f"stopped by {name} at step", errors)
        self.assertEqual(self.checkpoints("run"), [])

    # ---- disks and damage

    def test_a_save_that_fails_is_a_line_and_the_last_one_ends_with_1(self):
        in_the_way = self.folder / "file"
        in_the_way.write_text("no directory\n")
        errors = self.complete(
            "run", f"--steps 9 --checkpoints {in_the_way} {THREADS}", code=1
        )
        lines = [line for line in errors.splitlines() if "memory per rank" not in line]
        self.assertEqual(len(lines), 3, errors)
        for line in lines[:2]:
            self.assertIn(
                "warning: a checkpoint could not be saved, training goes ", line
            )
        self.assertIn(str(in_the_way), lines[2])
        self.assertEqual(steps_of(self.rows("run")), list(range(1, 10)))

    def test_a_disk_that_takes_no_more_leaves_what_was_there(self):
        def limit():  # files of at most 200 KB, as if the disk were full
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        flags = f"--optimizer adam {THREADS}"
        self.complete("whole", flags)
        self.complete("run", f"{flags} --steps 22")
        kept = [path.name for path in self.checkpoints("run")]
        errors = self.complete(
            "run", f"{flags} --resume auto", code=1, preexec_fn=limit
        )
        self.assertIn("File too large", errors)
        self.assertIn("training goes on", errors)
        self.assertEqual([path.name for path in self.checkpoints("run")], kept)
        self.complete("run", f"{flags} --resume auto")
        # Its schedule was that of 22 steps.
        self.assertEqual(steps_of(self.rows("run")), list(range(1, 61)))

    def test_damage_is_named_and_can_be_passed_over(self):
        flags = f"{THREADS} --steps 30"
        self.complete("run", flags)
        older, newest = self.checkpoints("run")
        state = max(newest.glob("*.safetensors"), key=lambda p: p.stat().st_size)
        data = bytearray(state.read_bytes())
        data[-5] ^= 1
        state.write_bytes(data)
        more = f"{THREADS} --steps 40 --resume auto"
        errors = self.complete("run", more, code=1)
        for part in (state.name, older.name):
            self.assertIn(part, errors)
        self.assertEqual(len(steps_of(self.rows("run"))), 30, "nothing changed")
        errors = self.complete("run", f"{more} --resume-fallback")
        self.assertIn(f"{older}: step 28 of 40", errors)

    def test_what_cannot_go_on_is_told(self):
        flags = f"{THREADS} --steps 9"
        errors = self.complete("run", f"{flags} --resume auto")
        self.assertIn("checkpoints: from the beginning", errors)
        nowhere = self.folder / "nowhere"
        errors = self.complete("run", f"{flags} --resume {nowhere}", code=1)
        self.assertIn(f"there is no complete checkpoint in {nowhere}", errors)
        self.assertIn("give --resume auto", errors)
        errors = self.complete("run", f"{flags} --resume --steps 5", code=1)
        self.assertIn("--steps must be at least 9", errors)
        errors = self.complete("run", f"{flags} --resume --seed 4", code=1)
        self.assertIn("--resume-new-data", errors)
        with open(self.text, "a", encoding="utf-8") as file:
            file.write("more\n")
        errors = self.complete("run", f"{flags} --resume", code=1)
        self.assertIn("other data", errors)
        self.assertEqual(len(steps_of(self.rows("run"))), 9, "nothing changed")
        self.complete("run", f"{THREADS} --steps 12 --resume --resume-new-data")
        self.assertEqual(len(steps_of(self.rows("run"))), 12)

    def test_a_fresh_start_over_another_runs_checkpoints_warns(self):
        flags = f"{THREADS} --steps 9"
        warning = "has 2 checkpoints of another run"
        self.assertNotIn(warning, self.complete("run", flags))
        self.assertIn(warning, self.complete("run", flags))
        self.assertNotIn(warning, self.complete("run", f"{flags} --resume"))

    def test_a_run_that_is_done_can_be_resumed(self):
        self.complete("run", THREADS)
        first = self.summary("run")
        self.complete("run", f"{THREADS} --resume")
        again = self.summary("run")
        for key in ("params_checksum", "final_val_loss", "bytes_sent_per_rank"):
            self.assertEqual(again[key], first[key], key)
        self.assertEqual(again["resumed_from"], 60)

    def test_retention_and_time(self):
        self.complete("run", f"{THREADS} --save-every 5 --keep-every 20 --keep-last 1")
        names = [path.name for path in self.checkpoints("run")]
        self.assertEqual(names, [f"step-{step:010}" for step in (20, 40, 60)])
        self.complete("timed", f"{THREADS} --save-every 50ms --keep-last 0")
        self.assertGreaterEqual(len(self.checkpoints("timed")), 2)

    def test_compares_a_resumed_run(self):
        self.complete("run", f"{THREADS} --steps 30")
        self.complete("run", f"{THREADS} --steps 40 --resume")
        out = ["--out", str(self.folder / "comparison")]
        done = self.run_program(["--compare", str(self.folder / "run"), *out])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("onebit_adam, resumed at step 30", done.stdout)


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
