#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links between emulated hosts are made, and nobody else ever sees them.

Skipped, exit code 77, where there may be no network namespaces.
"""

import subprocess
import sys
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench" / "network"
sys.path.insert(0, str(BENCH))

from links import alone

SKIPPED = 77
# Runs inside; the first process to be asked is on another host.
INSIDE = f"""
import subprocess, sys
sys.path.insert(0, {str(BENCH)!r})
from links import Links
links = Links(2)
links.set_rate(100, range(2))
listing = subprocess.run("ip -n host1 -o link; ip -n host1 route", shell=True,
                         capture_output=True, text=True, check=True).stdout
assert links.sent_bytes(0) >= 0
print(listing)
"""


def names():
    """What a user of this machine sees of networks."""
    folder = Path("/run/netns")
    named = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    lines = Path("/proc/net/dev").read_text().splitlines()
    devices = [line.split(":")[0] for line in lines]
    return named, devices


def run(*command, **how):
    """Runs it to its end, whatever its exit code."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


class TheLinks(unittest.TestCase):
    def test_they_lead_nowhere_else_and_leave_nothing(self):
        before = names()
        done = run(*alone([sys.executable, "-c", INSIDE]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(names(), before)
        self.assertIn("eth0@", done.stdout)
        routes = [line for line in done.stdout.splitlines() if " dev " in line]
        self.assertEqual(len(routes), 1, done.stdout)
        self.assertTrue(routes[0].startswith("10.78.0.0/24 dev eth0"), routes)

    def test_a_failure_leaves_nothing(self):
        before = names()
        done = run(*alone([sys.executable, "-c", INSIDE + "sys.exit(7)"]))
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertEqual(names(), before)


if __name__ == "__main__":
    probe = run(sys.executable, BENCH / "run", "--probe")
    if probe.returncode == 2:
        print(f"skipped: {probe.stderr.strip()}")
        sys.exit(SKIPPED)
    unittest.main()
