# SPDX-License-Identifier: Apache-2.0
"""Runs a check on a tree of files that a test has planted."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


class PlantedTree(unittest.TestCase):
    """A folder that each test of a check fills."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def plant(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def check(self, name, *arguments):
        """Exit code and output of check_NAME.py, by default on the folder."""
        script = Path(__file__).with_name(f"check_{name}.py")
        done = subprocess.run(
            [sys.executable, script, *(arguments or [self.root])],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def expect(self, name, *said):
        """The check says a line that begins so of each of `said`, and nothing else."""
        status, output = self.check(name)
        lines = sorted(output.splitlines())
        self.assertEqual(status, 1 if said else 0, output)
        self.assertEqual(len(lines), len(said), output)
        for line, part in zip(lines, sorted(said)):
            self.assertTrue(line.startswith(part), f"{line}\nfor {part}")

    def expect_of_rows(self, name, rows):
        """Plants rows (path, text, what is said of the text's first line or None), each
        below those of the same path, and checks them."""
        files, said = {}, []
        for path, text, problem in rows:
            above = files.get(path, "")
            files[path] = f"{above}{text}\n"
            if problem is not None:
                said.append(f"{path}:{above.count(chr(10)) + 1}: {problem}")
        for path, text in files.items():
            self.plant(path, text)
        self.expect(name, *said)
