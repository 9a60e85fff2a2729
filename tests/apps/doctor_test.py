#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `thinwire doctor` alone and as MPI processes.

usage: doctor_test.py THINWIRE MPIEXEC [TEST...]

MPIEXEC is empty where the build has no MPI; then tests that need it are
skipped, or fail if THINWIRE_REQUIRE names mpi.
"""

import os
import re
import shutil
import socket
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import mpi_launcher
from mpi_launcher import launcher, needs_mpi, run

THINWIRE, mpi_launcher.MPIEXEC = sys.argv[1:3]
HOST = socket.gethostname()


class Doctor(unittest.TestCase):
    def run_doctor(self, *prefix, code=0, **variables):
        env = {**os.environ, **variables}
        done = run(*prefix, THINWIRE, "doctor", env=env, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def names(self, output):
        return [line.split()[0] for line in output.splitlines()]

    def test_alone_it_reports_and_measures(self):
        report = self.run_doctor().stdout
        self.assertRegex(report, r"\nprocessor +.*\nkernels ")
        self.assertRegex(report, r"\nprefetch +(on|off): ")
        self.assertRegex(report, r"\nbandwidth +[0-9.]+ GB/s.*\nready: ")
        self.assertRegex(report, r"\ndevices +python -m thinwire doctor names ")
        self.assertRegex(report, r"\ntested +tensors on devices: test device")
        self.assertNotIn("\nranks ", report)

    def test_an_installed_program_recommends_no_script_of_a_clone(self):
        with tempfile.TemporaryDirectory() as folder:
            installed = shutil.copy2(THINWIRE, folder)
            done = run(installed, "doctor", timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\nready: ")
        self.assertNotIn("scripts/", done.stdout)

    def test_variables_that_no_run_would_accept_are_named(self):
        for name, value, text in (
            ("THINWIRE_TIMEOUT", "abc", "THINWIRE_TIMEOUT must be "),
            ("THINWIRE_SIMD", "AVX9", "THINWIRE_SIMD must be one of "),
            ("THINWIRE_COMM", "tcp", "THINWIRE_COMM must be one of local, mpi"),
        ):
            done = self.run_doctor(code=1, **{name: value})
            self.assertIn(text, done.stderr)
            self.assertRegex(done.stderr, rf"got [\"']{value}[\"']")
        report = self.run_doctor(THINWIRE_TIMEOUT="90s").stdout
        self.assertRegex(report, r"\ntimeout +90 s per collective\n")
        for name in re.search(r"\nkernels +.*, of (.*)\n", report)[1].split()[-1:]:
            report = self.run_doctor(THINWIRE_SIMD=name).stdout
            self.assertRegex(report, rf"\nkernels +{name}, of ")

    @needs_mpi
    def test_ranks_that_have_the_same_print_one_block(self):
        report = self.run_doctor(*launcher(3)).stdout
        names = self.names(report)
        self.assertEqual(len(set(names)), len(names), report)
        self.assertRegex(report, rf"\nranks +3, on 1 host \({HOST}: 3\)")
        self.assertIn("\nall ranks have the same\nready: ", report)

    @needs_mpi
    def test_each_difference_is_one_line_with_rank_and_host(self):
        program = (THINWIRE, "doctor", ":")
        start = launcher(1) + [*program, "-np", "2", "env", "THINWIRE_NUM_THREADS=3"]
        report = self.run_doctor(*start).stdout
        differing = [line for line in report.splitlines() if "differs" in line]
        threads = r"threads +3 per rank \(THINWIRE_NUM_THREADS\)"
        self.assertEqual(len(differing), 1, report)
        self.assertRegex(differing[0], rf"^differs: ranks 1, 2 on {HOST}: {threads}$")
        self.assertEqual(report.count("\nkernels "), 1, report)

    @needs_mpi
    def test_ranks_that_cannot_meet_print_labelled_blocks_and_fail(self):
        done = self.run_doctor(*launcher(2), code=1, THINWIRE_COMM="local")
        for rank in range(2):
            self.assertIn(f"rank {rank} on {HOST}\nversion ", done.stdout)
        self.assertIn("a launcher started 2 ranks", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
