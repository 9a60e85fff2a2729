#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study on a pre-trained encoder, with a program in Python's place that trains
nothing and prints at once.

usage: encoder_study_test.py STUDY
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

STUDY = ""
# Prints the accuracy of its optimizer, and rows that moved half as far
# as under DDP.
PYTHON = """#!/usr/bin/env python3
import json, sys
given = sys.argv[1:]
def value(name): return given[given.index(name) + 1]
optimizer, seed = value("--optimizer"), int(value("--seed"))
accuracy = {accuracy}[optimizer]
exact = optimizer == "ddp"
loss = 1.0 + seed + (0 if exact else 0.25)
found = {{"accuracy": accuracy[seed - 1], "loss": loss}}
print("a line of something else")
print(json.dumps({{"test": {{"all": found, "late": found, "seldom": found}},
                  "moved": {{"early": 2, "late": 2 if exact else 1}},
                  "bytes_sent": 3e6}}))
"""


class EncoderStudy(unittest.TestCase):
    def test_differences_are_to_ddp_with_the_same_seed(self):
        accuracy = {"ddp": [60.0, 58.0, 59.0], "onebit_adam": [60.2, 57.9, 59.1]}
        with tempfile.TemporaryDirectory(prefix="thinwire_encoder_") as out:
            program = Path(out, "python")
            program.write_text(PYTHON.format(accuracy=accuracy))
            program.chmod(0o755)
            done = subprocess.run(
                [sys.executable, STUDY, "--only", "^(ddp|onebit_adam)$", "--out", out]
                + ["--python", str(program), "--data", "texts", "--steps", "10"],
                capture_output=True,
                text=True,
                check=False,
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        exact, own = done.stdout.splitlines()[2:]
        self.assertIn("| torch DDP, AdamW | 3 | 59.00 ± 1.00 | – | – |", exact)
        self.assertIn("| +0.07 ± 0.15 | yes | 3.250 ± 1.000 |", own)
        self.assertIn("| +0.250 ± 0.000 | 1.00× | 0.50× | 3 MB |", own)


if __name__ == "__main__":
    STUDY = sys.argv.pop(1)
    unittest.main()
