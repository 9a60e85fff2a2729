#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study on a pre-trained encoder, with a program in Python's place that trains
nothing and prints at once.

usage: encoder_study_test.py STUDY
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

STUDY = ""
# Prints what it was given, the accuracy of its optimizer, and rows that moved half as far
# as under DDP.
PYTHON = """#!/usr/bin/env python3
import json, sys
given = sys.argv[1:]
def value(name): return given[given.index(name) + 1]
optimizer, seed = value("--optimizer"), int(value("--seed"))
accuracy = {accuracy}.get(optimizer)
if accuracy is None:
    sys.exit("ValueError: no such optimizer\\n=====")
exact = optimizer == "ddp"
loss = 1.0 + seed + (0 if exact else 0.25)
found = {{"accuracy": accuracy[seed - 1], "loss": loss}}
print("a line of something else")
print(json.dumps({{"test": {{"all": found, "late": found, "seldom": found}},
                  "moved": {{"early": 2, "late": 2 if exact else 1}},
                  "bytes_sent": 3e6, "given": given}}))
"""


class EncoderStudy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="thinwire_encoder_")
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)

    def study(self, accuracy, only):
        program = self.out / "python"
        program.write_text(PYTHON.format(accuracy=accuracy))
        program.chmod(0o755)
        return subprocess.run(
            [sys.executable, STUDY, "--only", only, "--out", str(self.out)]
            + ["--python", str(program), "--data", "texts", "--steps", "10"],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_differences_are_to_ddp_with_the_same_seed(self):
        accuracy = {"ddp": [60.0, 58.0, 59.0], "onebit_adam": [60.2, 57.9, 59.1]}
        done = self.study(accuracy, "^(ddp|onebit_adam)$")
        self.assertEqual(done.returncode, 0, done.stderr)
        exact, own = done.stdout.splitlines()[2:]
        self.assertIn("| torch DDP, AdamW | 3 | 59.00 ± 1.00 | – | – |", exact)
        self.assertIn("| +0.07 ± 0.15 | yes | 3.250 ± 1.000 |", own)
        self.assertIn("| +0.250 ± 0.000 | 1.00× | 0.50× | 3 MB |", own)

    def test_more_than_seed_noise_is_an_error(self):
        accuracy = {"ddp": [60.0, 58.0, 59.0], "zero_4_4": [58.0, 56.0, 57.1]}
        done = self.study(accuracy, "^(ddp|zero_4_4)$")
        self.assertEqual(done.returncode, 1)
        self.assertIn("more than seed noise: zero_4_4", done.stderr)

    def test_complete_runs_are_kept(self):
        self.study({"ddp": [60.0, 60.0, 60.0]}, "^ddp$")
        done = self.study({"ddp": [10.0, 10.0, 10.0]}, "^ddp$")
        self.assertIn("| 60.00 ± 0.00 |", done.stdout)
        run = next(self.out.glob("*/ddp/seed_2.json"))
        self.assertIn("texts", json.loads(run.read_text())["given"])

    def test_a_run_that_fails_is_named(self):
        done = self.study({}, "^adamw$")
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "adamw, seed 2: failed: ValueError: no such optimizer", done.stderr
        )


if __name__ == "__main__":
    STUDY = sys.argv.pop(1)
    unittest.main()
