#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves of train_gpt whose system calls fail, or are its last.

usage: train_gpt_strace_test.py PROGRAM MPIEXEC [TEST...]

strace makes the k-th call of every thread fail, or kills the run at it. Without
strace, or where it may not trace, tests are skipped, or fail if THINWIRE_REQUIRE
names strace. THINWIRE_TEST_LONG=1 takes every k, until none is reached.
"""

import itertools
import os
import shutil
import sys

import train_gpt_runs
from mpi_launcher import run
from train_gpt_runs import QUIET, TINY, Runs, batch, freeze

FLAGS = (
    f"--save-every 2 --set checkpoint.asynchronous=false --ranks 2 {batch(2)} "
    f"{freeze(2)} {TINY} {QUIET}"
)
CALLS = ("pwrite64", "fsync", "rename")
LONG = "THINWIRE_TEST_LONG" in os.environ


def can_trace():
    if shutil.which("strace") is None:
        return False
    return run("strace", "-qq", "true").returncode == 0


class TrainGpt(Runs):
    def setUp(self):
        super().setUp()
        if can_trace():
            return
        if "strace" in os.environ.get("THINWIRE_REQUIRE", ""):
            self.fail("there is no strace that may trace, but THINWIRE_REQUIRE asks")
        self.skipTest("apt-get install strace, and the right to trace")

    def run_to(self, name, steps, inject=None):
        """Resumes or begins; returns its end and whether something was injected."""
        log = self.folder / "strace.log"
        tracer = []
        if inject:
            call = inject.split(":")[0]
            flags = f"-f -qq -o {log} -e trace={call} -e inject={inject}"
            tracer = ["strace", *flags.split()]
        out = f"--out {self.folder / name} --resume auto --steps {steps}"
        arguments = ["--data", str(self.text), *f"{FLAGS} {out}".split()]
        code = None if inject else 0
        done = self.run_program(arguments, code, wrapper=tracer)
        if not inject:
            return done, False
        text = log.read_text()
        return done, "(INJECTED)" in text or "killed by SIGKILL" in text

    def checksum(self, name):
        return self.summary_of(self.folder / name)["params_checksum"]

    def check_goes_on(self, inject):
        """One run that is hit after its first saves, and again without. False:
        there were fewer such calls."""
        shutil.copytree(self.folder / "base", self.folder / "run")
        done, is_hit = self.run_to("run", 8, inject)
        if "SIGKILL" in inject:
            self.assertEqual(done.returncode != 0, is_hit, done.stderr)
        elif is_hit:
            self.assertIn(done.returncode, (0, 1), done.stderr)
            self.assertRegex(done.stderr, "No space left|Input/output error")
        self.run_to("run", 8)
        self.assertEqual(self.checksum("run"), self.checksum("whole"))
        shutil.rmtree(self.folder / "run")
        return is_hit

    def check_injected(self, what):
        self.run_to("whole", 8)
        self.run_to("base", 2)
        for call in CALLS:
            hits = 0
            for k in itertools.count(1) if LONG else (1, 3):
                inject = f"{call}:{what}:when={k}"
                with self.subTest(inject=inject):
                    if not self.check_goes_on(inject):
                        break
                    hits += 1
            self.assertGreater(hits, 0, call)

    def test_a_full_disk_at_any_call(self):
        self.check_injected("error=ENOSPC")

    def test_a_broken_disk_at_any_call(self):
        self.check_injected("error=EIO")

    def test_killed_at_any_call(self):
        self.check_injected("signal=SIGKILL")


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))
