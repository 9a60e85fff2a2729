#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study on pictures, with a program that trains nothing and prints at once.

usage: image_study_test.py STUDY
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

STUDY = ""
# Says what it was given, and the accuracy that ACCURACY has for row and seed.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
config, pictures, steps, seed = sys.argv[1:]
row = pathlib.Path(config).parent.name
accuracy = {accuracy}.get(row)
if accuracy is None:
    sys.exit("image_classifier: no such optimizer")
print(json.dumps({{"accuracy": accuracy[int(seed) - 1], "loss": 0.5, "equal": {equal},
                  "bytes_sent": 1000 if row == "adam" else 100, "rounds": 1,
                  "given": [pictures, steps, seed]}}))
"""


class ImageStudy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="thinwire_images_")
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)

    def study(self, accuracy, only, equal=True):
        program = self.out / "program"
        program.write_text(PROGRAM.format(accuracy=accuracy, equal=equal))
        program.chmod(0o755)
        return subprocess.run(
            [sys.executable, STUDY, "--only", only, "--out", str(self.out)]
            + ["--program", str(program), "--data", "pictures", "--steps", "100"],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_noise_is_two_standard_errors_of_paired_seeds(self):
        exact = [90.0, 88.0, 89.0]
        for name, own, verdict, code in (
            ("small beside its errors", [90.2, 87.9, 89.1], "yes", 0),
            ("the same for every seed", [89.8, 87.8, 88.81], "**no**", 1),
            ("more than half a point", [88.0, 87.9, 88.9], "**no**", 1),
        ):
            with self.subTest(name):
                for file in self.out.rglob("seed_*.json"):
                    file.unlink()
                accuracy = {"adam": exact, "onebit_adam": own}
                done = self.study(accuracy, "^(onebit_)?adam$")
                self.assertEqual(done.returncode, code, done.stderr)
                lines = done.stdout.splitlines()
                self.assertIn("| Adam | 3 | 89.00 ± 1.00 | – | – | – |", lines[2])
                self.assertIn(f"| Adam | {verdict} |", lines[3])
                self.assertIn("| 10.0× |", lines[3])

    def test_runs_that_are_there_are_kept(self):
        self.study({"adam": [90.0, 90.0, 90.0]}, "^adam$")
        done = self.study({"adam": [10.0, 10.0, 10.0]}, "^adam$")
        self.assertIn("| 90.00 ± 0.00 |", done.stdout)
        table = self.out / "100_steps" / "table.md"
        self.assertEqual(table.read_text(), done.stdout)
        run = json.loads((table.parent / "adam" / "seed_2.json").read_text())
        self.assertEqual(run["given"], ["pictures", "100", "2"])

    def test_a_run_that_fails_is_named(self):
        done = self.study({}, "^lamb$")
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "lamb, seed 2: failed: image_classifier: no such optimizer", done.stderr
        )

    def test_ranks_that_differ_are_an_error(self):
        done = self.study({"adam": [1.0, 1.0, 1.0]}, "^adam$", equal=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("different parameters", done.stderr)

    def test_settings_are_the_same_but_for_the_optimizer(self):
        sys.path.insert(0, str(Path(STUDY).parent))
        from image_rows import all_rows, config

        rows = {row.name: row for row in all_rows()}
        adam = config(rows["adam"], 1000)
        for row in rows.values():
            self.assertIn(row.baseline, rows)
            own = config(row, 1000)
            for key in ("scheduler", "gradient_clipping"):
                self.assertEqual(own[key], adam[key])
            if not row.optimizer.lower().endswith("lamb"):
                params = own["optimizer"]["params"]
                self.assertEqual(params["lr"], adam["optimizer"]["params"]["lr"])


if __name__ == "__main__":
    STUDY = sys.argv.pop(1)
    unittest.main()
