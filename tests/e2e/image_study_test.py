#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study on pictures, with a program that trains nothing and prints at once.

usage: image_study_test.py STUDY
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

STUDY = ""
# Says the accuracy of its row and seed.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
config, pictures, steps, seed = sys.argv[1:]
row = pathlib.Path(config).parent.name
accuracy = {accuracy}[row]
print(json.dumps({{"accuracy": accuracy[int(seed) - 1], "loss": 0.5, "equal": True,
                  "bytes_sent": 1000 if row == "adam" else 100, "rounds": 1}}))
"""


class ImageStudy(unittest.TestCase):
    def test_accuracies_stand_beside_those_of_the_same_seed(self):
        accuracy = {"adam": [90.0, 88.0, 89.0], "onebit_adam": [90.2, 87.9, 89.1]}
        with tempfile.TemporaryDirectory(prefix="thinwire_images_") as out:
            program = Path(out, "program")
            program.write_text(PROGRAM.format(accuracy=accuracy))
            program.chmod(0o755)
            done = subprocess.run(
                [sys.executable, STUDY, "--only", "^(onebit_)?adam$", "--out", out]
                + ["--program", str(program), "--data", "pictures", "--steps", "100"],
                capture_output=True,
                text=True,
                check=False,
            )
            table = Path(out, "100_steps", "table.md").read_text()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(table, done.stdout)
        exact, own = done.stdout.splitlines()[2:]
        self.assertIn("| Adam | 3 | 89.00 ± 1.00 | – | – | – |", exact)
        self.assertIn("| Adam | yes |", own)
        self.assertIn("| 10.0× |", own)

    def test_settings_are_the_same_but_for_the_optimizer(self):
        sys.path.insert(0, str(Path(STUDY).parent))
        from image_classifier import all_rows, config

        rows = {row.name: row for row in all_rows()}
        adam = config(rows["adam"], 1000)
        for row in rows.values():
            self.assertIn(row.baseline, rows)
            own = config(row, 1000)
            for key in ("scheduler", "gradient_clipping"):
                self.assertEqual(own[key], adam[key])
            if not row.flags.lower().endswith("lamb"):
                params = own["optimizer"]["params"]
                self.assertEqual(params["lr"], adam["optimizer"]["params"]["lr"])


if __name__ == "__main__":
    STUDY = sys.argv.pop(1)
    unittest.main()
