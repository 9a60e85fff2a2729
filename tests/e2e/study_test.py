#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of convergence over runs that are there already: it trains nothing.

usage: study_test.py STUDY
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

STUDY = ""


def write_run(folder, loss, bytes_per_step):
    folder.mkdir(parents=True)
    summary = {"final_val_loss": loss, "bytes_sent_per_rank": sum(bytes_per_step)}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [
        {"step": i, "bytes_sent": sent} for i, sent in enumerate(bytes_per_step, 1)
    ]
    lines.append({"step": len(bytes_per_step), "val_loss": loss})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


class Study(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="thinwire_study_")
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)
        self.runs = self.out / "4_steps_4_ranks"

    def study(self, *arguments):
        return subprocess.run(
            [sys.executable, STUDY, "--steps", "4", "--out", str(self.out), *arguments]
            + ["--data", "text", "--program", "/no/program", "--seeds", "1", "2"],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_gaps_are_between_runs_of_one_seed(self):
        for seed, dense, gap in ((1, 1.6, 0.02), (2, 1.8, 0.04)):
            seed = f"seed_{seed}"
            write_run(self.runs / "adam_1.5e-3" / seed, dense, [2_000_000] * 4)
            mine = self.runs / "zero_one_adam_1.5e-3" / seed
            write_run(mine, dense + gap, [1_000_000, 1_000_000, 0, 0])
        # Complete runs are kept, so the program is not started.
        done = self.study("--only", "^(zero_one_)?adam_1.5e-3$")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 4)
        dense = "| Adam, lr 1.5e-3 | 2 | 1.700 ± 0.141 | – | – | 8 MB | 1.0× | 1.00 |"
        self.assertEqual(lines[2], dense)
        expected = "| +0.030 ± 0.014 | Adam, lr 1.5e-3 | 2 MB | 4.0× | 0.50 |"
        self.assertIn(expected, lines[3])
        self.assertEqual((self.runs / "table.md").read_text(), done.stdout)

    def test_a_run_that_fails_is_named(self):
        done = self.study("--only", "^lamb$")
        self.assertEqual(done.returncode, 1)
        self.assertIn("lamb, seed 2: failed", done.stderr)

    def test_a_run_that_was_stopped_is_made_again(self):
        run = self.runs / "adam_1.5e-3" / "seed_1"
        write_run(run, 2.3, [2_000_000])
        summary = json.loads((run / "summary.json").read_text())
        summary |= {"stopped_at": 1, "stopped_by": "SIGTERM"}
        (run / "summary.json").write_text(json.dumps(summary))
        done = self.study("--only", "^adam_1.5e-3$")
        self.assertIn("adam_1.5e-3, seed 1: failed", done.stderr)
        self.assertNotIn("2.300", done.stdout)

    def test_every_row_is_held_against_one_that_is_there(self):
        sys.path.insert(0, str(Path(STUDY).parent))
        from study import all_rows

        rows = {row.name: row for row in all_rows()}
        self.assertEqual(len(rows), len(all_rows()))
        for row in rows.values():
            self.assertIn(row.baseline, rows)
            self.assertEqual(rows[row.dense].dense, row.dense)


if __name__ == "__main__":
    STUDY = sys.argv.pop(1)
    unittest.main()
