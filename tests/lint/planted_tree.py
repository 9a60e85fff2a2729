# SPDX-License-Identifier: Apache-2.0
"""Runs a check on a tree of files that a test has planted."""

import subprocess
import sys
import tempfile
from pathlib import Path


def run_on(check, files):
    """Exit code and output of the script `check` on files by path."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            file = Path(root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        script = Path(__file__).with_name(check)
        done = subprocess.run(
            [sys.executable, script, root],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout
