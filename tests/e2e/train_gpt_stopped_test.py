#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of train_gpt that signals stop, and ranks that stand still while saving.

usage: train_gpt_stopped_test.py PROGRAM MPIEXEC [TEST...]
"""

import contextlib
import os
import signal
import sys
import time

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import QUIET
from train_gpt_saved_runs import SIZE, STEPS, THREADS, SavedRuns, ranks_of, steps_of


class TrainGpt(SavedRuns):
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
        self.end_of(process, seconds=120)
        self.check_same("run", "whole")

    @needs_mpi
    def test_a_hung_rank_ends_the_run_which_then_resumes(self):
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

    # ---- stopped

    def check_stopped(self, name, extra, send, ranks=0):
        """A signal saves and ends with 3; then the run goes on alike."""
        process = self.start("run", f"{extra} --steps 100000", ranks=ranks)
        self.wait_for("run", process, lambda rows: len(steps_of(rows)) > 4)
        process.send_signal(send)
        errors = self.end_of(process, code=3)
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
        extra = f"--optimizer zero_one_adam --steps 600 {THREADS}"
        self.complete("whole", extra)
        process = self.start("run", extra)
        self.wait_for("run", process, lambda rows: len(steps_of(rows)) >= 40)
        process.send_signal(signal.SIGUSR1)
        self.end_of(process, code=3)
        self.complete("run", f"{extra} --resume auto")
        self.check_same("run", "whole")

    def test_sigterm_saves(self):
        self.check_stopped("SIGTERM", THREADS, signal.SIGTERM)

    def test_sigint_saves(self):
        self.check_stopped("SIGINT", "--optimizer zero_one_adam", signal.SIGINT)

    def test_sigusr1_saves_whatever_was_asked_for(self):
        extra = f"{STEPS} {SIZE} {QUIET}".replace("--save-every 4", "")
        out = self.folder / "run"
        arguments = f"{extra} --steps 100000 --data {self.text} --out {out}"
        process = self.begin(arguments.split())
        self.wait_for("run", process, lambda rows: len(rows) > 4)
        process.send_signal(signal.SIGUSR1)
        self.end_of(process, code=3)
        self.assertEqual(len(self.checkpoints("run")), 1)

    @needs_mpi
    def test_mpirun_forwards_sigusr1(self):
        errors = self.check_stopped("SIGUSR1", "", signal.SIGUSR1, ranks=3)
        self.assertNotIn("finaliz", errors, "all ranks pass MPI_Finalize")

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
        extra = "--steps 100000 --save-every 1000000 --set train_gpt.save_on=USR1,USR2"
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


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
