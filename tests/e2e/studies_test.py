#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The studies of bench/convergence, with programs that train nothing.

usage: studies_test.py FOLDER
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = sys.argv.pop(1)
sys.path.insert(0, FOLDER)
# Prints an accuracy of its row and seed.
PICTURES = """#!/usr/bin/env python3
import json, pathlib, sys
config, pictures, steps, seed = sys.argv[1:]
row = pathlib.Path(config).parent.name
accuracy = {accuracy}[row]
print(json.dumps({{"accuracy": accuracy[int(seed) - 1], "loss": 0.5, "equal": True,
                  "bytes_sent": 1000 if row == "adam" else 100, "rounds": 1}}))
"""
# Stands in Python's place. It also prints rows that moved half as far as under DDP.
ENCODER = """#!/usr/bin/env python3
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


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="thinwire_studies_")
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)

    def study(self, name, *arguments):
        command = [sys.executable, Path(FOLDER, name), "--out", self.out, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def program(self, text):
        path = self.out / "program"
        path.write_text(text)
        path.chmod(0o755)
        return path

    def last_lines(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()[2:]


class Studies(Case):
    def test_accuracies_of_pictures_stand_beside_those_of_the_same_seed(self):
        accuracy = {"adam": [90.0, 88.0, 89.0], "onebit_adam": [90.2, 87.9, 89.1]}
        program = self.program(PICTURES.format(accuracy=accuracy))
        given = ("--data", "pictures", "--steps", "100", "--program", program)
        done = self.study("image_classifier.py", "--only", "^(onebit_)?adam$", *given)
        exact, own = self.last_lines(done)
        self.assertEqual((self.out / "100_steps/table.md").read_text(), done.stdout)
        self.assertIn("| Adam | 3 | 89.00 ± 1.00 | – | – | – |", exact)
        self.assertIn("| Adam | yes |", own)
        self.assertIn("| 10.0× |", own)

    def test_settings_on_pictures_differ_only_in_the_optimizer(self):
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

    def test_differences_of_encoders_are_to_ddp_with_the_same_seed(self):
        accuracy = {"ddp": [60.0, 58.0, 59.0], "onebit_adam": [60.2, 57.9, 59.1]}
        program = self.program(ENCODER.format(accuracy=accuracy))
        given = ("--data", "texts", "--steps", "10", "--python", program)
        done = self.study("encoder.py", "--only", "^(ddp|onebit_adam)$", *given)
        exact, own = self.last_lines(done)
        self.assertIn("| torch DDP, AdamW | 3 | 59.00 ± 1.00 | – | – |", exact)
        self.assertIn("| +0.07 ± 0.15 | yes | 3.250 ± 1.000 |", own)
        self.assertIn("| +0.250 ± 0.000 | 1.00× | 0.50× | 3 MB |", own)


class KeptRuns(Case):
    """study.py over runs that are there already."""

    def setUp(self):
        super().setUp()
        self.runs = self.out / "4_steps_4_ranks"

    def write_run(self, row, seed, loss, bytes_per_step, **more):
        folder = self.runs / row / f"seed_{seed}"
        folder.mkdir(parents=True)
        summary = {"final_val_loss": loss, "bytes_sent_per_rank": sum(bytes_per_step)}
        (folder / "summary.json").write_text(json.dumps(summary | more))
        lines = [
            {"step": i, "bytes_sent": sent} for i, sent in enumerate(bytes_per_step, 1)
        ]
        lines.append({"step": len(bytes_per_step), "val_loss": loss})
        text = "\n".join(map(json.dumps, lines)) + "\n"
        (folder / "metrics.jsonl").write_text(text)

    def kept(self, only):
        given = ("--steps", "4", "--data", "text", "--program", "/no/program")
        return self.study("study.py", *given, "--seeds", "1", "2", "--only", only)

    def test_gaps_are_between_runs_of_one_seed(self):
        for seed, dense, gap in ((1, 1.6, 0.02), (2, 1.8, 0.04)):
            self.write_run("adam_1.5e-3", seed, dense, [2_000_000] * 4)
            sent = [1_000_000, 1_000_000, 0, 0]
            self.write_run("zero_one_adam_1.5e-3", seed, dense + gap, sent)
        # Complete runs are kept, so the program is not started.
        done = self.kept("^(zero_one_)?adam_1.5e-3$")
        exact, own = self.last_lines(done)
        dense = "| Adam, lr 1.5e-3 | 2 | 1.700 ± 0.141 | – | – | 8 MB | 1.0× | 1.00 |"
        self.assertEqual(exact, dense)
        expected = "| +0.030 ± 0.014 | Adam, lr 1.5e-3 | 2 MB | 4.0× | 0.50 |"
        self.assertIn(expected, own)
        self.assertEqual((self.runs / "table.md").read_text(), done.stdout)

    def test_a_run_that_fails_is_named_and_one_that_was_stopped_is_made_again(self):
        done = self.kept("^lamb_clip$")
        self.assertEqual(done.returncode, 1)
        self.assertIn("lamb_clip, seed 2: failed", done.stderr)
        stopped = {"stopped_at": 1, "stopped_by": "SIGTERM"}
        self.write_run("adam_1.5e-3", 1, 2.3, [2_000_000], **stopped)
        done = self.kept("^adam_1.5e-3$")
        self.assertIn("adam_1.5e-3, seed 1: failed", done.stderr)
        self.assertNotIn("2.300", done.stdout)

    def test_every_row_is_compared_with_an_existing_one(self):
        from study import all_rows

        rows = {row.name: row for row in all_rows()}
        self.assertEqual(len(rows), len(all_rows()))
        for row in rows.values():
            self.assertIn(row.baseline, rows)
            self.assertEqual(rows[row.dense].dense, row.dense)


if __name__ == "__main__":
    unittest.main()
