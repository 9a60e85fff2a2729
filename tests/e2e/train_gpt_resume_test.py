#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of train_gpt that are killed, stopped and resumed.

usage: train_gpt_resume_test.py PROGRAM MPIEXEC [TEST...]

THINWIRE_TEST_LONG=1 makes loops of kills many times as long.
"""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_saved_runs import LONG, THREADS, SavedRuns, ranks_of, steps_of

OUTER = "--set outer.sync_every=3 --set outer.momentum=0.3"


class TrainGpt(SavedRuns):
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
        self.assertIn("resumed from", self.end_of(process, seconds=300))
        self.check_same("run", "whole")
        summary = self.summary("run")
        self.assertGreater(summary["resumed_from"], 0)
        self.assertGreaterEqual(summary["saves"], 15)
        self.assertGreater(summary["save_seconds"], 0)

    def test_killed_adam_sharded_in_bf16(self):
        self.check_killed_in(
            ["exact"],
            "--optimizer adam --set zero_optimization.stage=2 --set bf16.enabled=true",
        )

    def test_killed_adam_of_low_rank(self):
        extra = "--optimizer adam --set low_rank=4 --set first_steps=20"
        self.check_killed_in(["exact", "exact"], extra)

    def test_killed_onebit_adam_in_fp16(self):
        extra = "--optimizer onebit_adam --set fp16.enabled=true --set gradient_accumulation_steps=2"
        self.check_killed_in(["exact", "compressed"], extra)

    def test_killed_zero_one_adam(self):
        phases = ["exact", "compressed", "local"]
        self.check_killed_in(phases, "--optimizer zero_one_adam")

    def test_killed_outer_loop(self):
        extra = f"--optimizer onebit_adam {OUTER}"
        self.check_killed_in(["exact", "local", "compressed"], extra)

    @needs_mpi
    def test_a_killed_rank_of_an_outer_loop_and_then_other_ranks(self):
        """One of four ranks, between two syncs or in one; three resume, then five."""
        extra = f"--optimizer adam {OUTER} --set outer.warmup_steps=16"
        process = self.start("run", extra, ranks=4)
        self.wait_for("run", process, lambda rows: len(rows) > 24)
        os.kill(ranks_of(process)[2], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("rank 2", errors)
        for ranks, steps in ((3, 75), (5, 90)):
            more = f"{extra} --steps {steps} --resume auto"
            self.complete("run", more, ranks=ranks)
            summary = self.summary("run")
            self.assertGreater(summary["resumed_from"], 0)
            self.assertLess(summary["final_val_loss"], 5)

    def check_killed_again_and_again(self, kills, flags, seconds, ranks=0):
        """At any time, also while it saves or begins: itself, or one of its processes."""
        self.complete("whole", flags, ranks=ranks)
        moments = random.Random(11)
        killed = 0
        while killed < kills:
            process = self.start("run", f"{flags} --resume auto", ranks=ranks)
            try:
                _, errors = process.communicate(timeout=moments.uniform(*seconds))
            except subprocess.TimeoutExpired:
                os.kill(moments.choice(ranks_of(process)), signal.SIGKILL)
                process.communicate(timeout=60)
                killed += 1
                continue
            # It was faster: the same end once more, from an earlier checkpoint.
            self.assertEqual(process.returncode, 0, errors)
            self.check_same("run", "whole")
            shutil.rmtree(self.folder / "run")
        self.complete("run", f"{flags} --resume auto", ranks=ranks)
        self.check_same("run", "whole")

    @needs_mpi
    def test_killed_processes_again_and_again(self):
        flags = (
            f"--optimizer zero_one_adam --save-every 3 --steps {200 if LONG else 60}"
        )
        kills = 40 if LONG else 4
        self.check_killed_again_and_again(kills, flags, (0.4, 1.6), ranks=2)

    def test_killed_again_and_again(self):
        kills = 100 if LONG else 5
        flags = f"--optimizer zero_one_adam --save-every 3 {THREADS}"
        steps = f"--steps {300 if LONG else 60}"
        self.check_killed_again_and_again(kills, f"{flags} {steps}", (0.2, 1.2))
        left = [path.name for path in (self.folder / "run/checkpoints").iterdir()]
        # A process that is killed in its first save, at step 3, leaves another run's part,
        # which is kept.
        later = [
            n for n in left if "step-" in n and not n.startswith("step-0000000003.")
        ]
        self.assertLessEqual(len(later), 3, left)
        self.assertLessEqual(len([n for n in left if ".partial-" in n]), kills, left)

    # ---- disks and damage

    def test_a_save_that_fails_is_a_line_and_the_last_one_ends_with_1(self):
        in_the_way = self.folder / "file"
        in_the_way.write_text("no directory\n")
        errors = self.complete(
            "run", f"--steps 9 --set checkpoint.root={in_the_way} {THREADS}", code=1
        )
        beside = "memory per rank|freeze_step is"
        lines = [line for line in errors.splitlines() if not re.search(beside, line)]
        self.assertEqual(len(lines), 3, errors)
        for line in lines[:2]:
            self.assertIn("warning: a checkpoint could not be saved, training ", line)
        self.assertIn(str(in_the_way), lines[2])
        self.assertEqual(steps_of(self.rows("run")), list(range(1, 10)))
        self.assertEqual(self.summary("run")["steps"], 9)

    def test_a_disk_that_takes_no_more_leaves_what_was_there(self):
        def limit():  # files of at most 200 KB, as if the disk were full
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        flags = f"--optimizer adam {THREADS}"
        self.complete("whole", flags)
        self.complete("run", f"{flags} --steps 22")
        kept = [path.name for path in self.checkpoints("run")]
        errors = self.complete(
            "run", f"{flags} --resume auto", code=1, preexec_fn=limit
        )
        self.assertIn("File too large: writing ", errors)
        self.assertIn("training continues", errors)
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
        errors = self.complete("run", f"{more} --set train_gpt.resume_fallback=true")
        self.assertIn(f"{older}: step 28 of 40", errors)

    def test_a_fresh_start_in_an_existing_folder_without_checkpoints(self):
        """As with a mounted volume, or what an earlier run has left of itself."""
        for left in ((), (".lock",), ("latest",), (".lock", "latest")):
            with self.subTest(left=left):
                name = "run" + "".join(left)
                root = self.folder / f"saved{name}"
                root.mkdir()
                for file in left:
                    (root / file).write_text("step-0000000001\n")
                flags = f"--steps 9 --set checkpoint.root={root} {THREADS}"
                self.assertNotIn("another run", self.complete(name, flags))
                self.assertTrue((root / "step-0000000009/manifest.json").exists())

    def test_checkpoints_that_cannot_continue_are_named(self):
        flags = f"{THREADS} --steps 9"
        errors = self.complete("run", f"{flags} --resume auto")
        self.assertIn("checkpoints: the run begins anew", errors)
        nowhere = self.folder / "nowhere"
        errors = self.complete("run", f"{flags} --resume {nowhere}", code=1)
        self.assertIn(f"there is no complete checkpoint in {nowhere}", errors)
        self.assertIn("give --resume auto", errors)
        with open(self.text, "a", encoding="utf-8") as file:
            file.write("more\n")
        errors = self.complete("run", f"{flags} --resume", code=1)
        self.assertIn("other data", errors)
        self.assertEqual(len(steps_of(self.rows("run"))), 9, "nothing changed")
        anyway = "--resume --set train_gpt.resume_new_data=true"
        self.complete("run", f"{THREADS} --steps 12 {anyway}")
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


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
